"""What an error says when nobody gives it words."""

from __future__ import annotations

import pickle

from clusterscrapy.exceptions import (
    ClusterScrapyError,
    CodecError,
    ConfigError,
    FrontierError,
    FrontierUnavailable,
)


def test_the_default_message_is_the_docstrings_first_paragraph():
    assert str(CodecError()) == (
        "The request cannot be stored; make its callback a spider method and its values plain data."
    )


def test_a_given_message_replaces_the_default():
    assert str(FrontierError("no")) == "no"


def test_an_error_without_a_docstring_says_its_name():
    class Bare(ClusterScrapyError):
        pass

    assert str(Bare()) == "Bare"


def test_every_error_is_a_clusterscrapy_error():
    assert issubclass(ConfigError, ClusterScrapyError)
    assert issubclass(FrontierUnavailable, FrontierError)
    assert issubclass(CodecError, FrontierError)


def test_a_codec_error_names_the_place_and_the_url():
    error = CodecError("no", path="meta['x']", url="http://site/")
    assert (error.path, error.url) == ("meta['x']", "http://site/")


def test_a_codec_error_survives_a_process_boundary():
    error = pickle.loads(pickle.dumps(CodecError("no", path="meta['x']", url="http://site/")))
    assert (str(error), error.path, error.url) == ("no", "meta['x']", "http://site/")


def test_exit_codes_are_those_of_the_contract():
    assert (ConfigError.exit_code, FrontierUnavailable.exit_code) == (8, 6)
