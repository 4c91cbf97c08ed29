"""Static pages with twenty links each behind nginx, whose log is the clock."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from random import Random
from urllib.request import urlopen

from tests.servers import free_port, need

LINKS = 20
_FILLER = "<p>" + "A page that is here to be fetched, parsed and followed. " * 24 + "</p>"


class Pages:
    """So many pages of about 2.9 KB; two links of each lead on, eighteen are random."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        root = folder / "www"
        root.mkdir()
        random = Random(1)
        for number in range(count):
            onward = [n for n in (2 * number + 1, 2 * number + 2) if n < count]
            links = onward + [random.randrange(count) for _ in range(LINKS - len(onward))]
            anchors = "".join(f'<li><a href="{n}.html">page {n}</a></li>' for n in links)
            (root / f"{number}.html").write_text(
                f"<html><head><title>{number}</title></head><body>{_FILLER}<ul>{anchors}</ul></body></html>"
            )
        self.log = folder / "access.log"
        self.port = free_port()
        config = folder / "nginx.conf"
        config.write_text(
            f"""daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
            events {{ worker_connections 512; }}
            http {{
                types {{ text/html html; }} log_format clock '$msec'; access_log {self.log} clock;
                client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
                uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                server {{ listen 127.0.0.1:{self.port}; root {root}; }}
            }}"""
        )
        self.process = subprocess.Popen([need("nginx"), "-c", str(config)])
        self.url = f"http://127.0.0.1:{self.port}/"
        for _ in range(100):
            try:
                urlopen(f"{self.url}0.html").close()
                break
            except OSError:
                time.sleep(0.05)

    def rate(self) -> float:
        """Pages a second, from the first answer to the last, since the log was emptied."""
        times = [float(line) for line in self.log.read_text().splitlines()]
        assert len(times) >= self.count, f"{len(times)} of {self.count} pages were fetched"
        return (len(times) - 1) / (times[-1] - times[0])

    def forget(self) -> None:
        """Empty the log."""
        self.log.write_text("")

    def stop(self) -> None:
        """Stop nginx."""
        self.process.terminate()
        self.process.wait(10)
