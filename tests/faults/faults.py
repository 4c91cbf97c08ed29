"""Small wrong versions of the product, as data: each must make one of the tests that it names fail.

A fault is a text that occurs exactly once in a file, and what stands there instead. It is a mistake
somebody could make, or one that another crawler has made. Whoever changes the text changes the
fault along.
"""

from __future__ import annotations

from dataclasses import dataclass

DATABASE = "clusterscrapy/frontier/sqlite/database.py"
ENTRANCE = "clusterscrapy/frontier/sqlite/entrance.py"
LEASES = "clusterscrapy/frontier/sqlite/leases.py"
LETTERS = "clusterscrapy/frontier/sqlite/letters.py"
SESSION = "clusterscrapy/frontier/sqlite/session.py"
STATE = "clusterscrapy/frontier/sqlite/state.py"
STORE = "clusterscrapy/frontier/sqlite/store.py"
LIVENESS = "clusterscrapy/frontier/liveness.py"
PROTOCOL = "clusterscrapy/frontier/protocol.py"
COMMON = "clusterscrapy/frontier/lua/common.lua"
SYNC = "clusterscrapy/frontier/lua/sync.lua"
JOIN = "clusterscrapy/frontier/lua/join.lua"
LEAVE = "clusterscrapy/frontier/lua/leave.lua"
FINISH = "clusterscrapy/frontier/lua/finish.lua"
DROP = "clusterscrapy/frontier/lua/drop.lua"
REPLAY = "clusterscrapy/frontier/lua/replay.lua"
FORGET = "clusterscrapy/frontier/lua/forget.lua"
COURIER = "clusterscrapy/frontier/courier.py"
SCHEDULER = "clusterscrapy/scheduler.py"
KEYS = "clusterscrapy/dupefilter.py"
SPIDERMW = "clusterscrapy/spidermw.py"
LIFECYCLE = "clusterscrapy/lifecycle.py"
OUTCOME = "clusterscrapy/outcome.py"
FEEDS = "clusterscrapy/feeds.py"
SEED_KEYS = "clusterscrapy/compat/scrapy_redis/seeds.py"
SEEDS_LUA = "clusterscrapy/compat/scrapy_redis/seeds.lua"
THEIR_SETTINGS = "clusterscrapy/compat/scrapy_redis/settings.py"
BACKLOG = "clusterscrapy/compat/scrapy_redis/backlog.py"
SEEN = "clusterscrapy/compat/scrapy_redis/seen.py"


@dataclass(frozen=True)
class Fault:
    """One wrong version."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Test ids, at least one of which has to fail."""


def _contract(store: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/contract/test_frontier.py::test_{name}[{store}]" for name in names)


def _more(store: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/contract/test_frontier_more.py::test_{name}[{store}]" for name in names)


def _back(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/contract/test_redis_goes_back.py::test_{name}" for name in names)


def _courier(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/unit/test_courier.py::test_{name}" for name in names)


def _requests(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/integration/test_requests.py::test_{name}" for name in names)


def _life(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/integration/test_worker_life.py::test_{name}" for name in names)


def _worker(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/integration/test_worker_faults.py::test_{name}" for name in names)


def _death(*cases: str) -> tuple[str, ...]:
    module = "tests/chaos/test_crash_points.py"
    return tuple(f"{module}::test_a_death_at_this_step_loses_no_page[{case}]" for case in cases)


def _integration(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/integration/test_{module}.py::test_{name}" for name in names)


_KILLED_UNPREPARED = "a_worker_killed_before_it_opened_its_file_leaves_no_items_of_an_earlier_run"

_IN_SQLITE = (
    Fault(
        "a failed batch is kept in part",
        DATABASE,
        'db.execute("ROLLBACK")',
        'db.execute("COMMIT")',
        _more("sqlite", "a_batch_that_fails_leaves_no_trace"),
    ),
    Fault(
        "seen is committed before queued",
        SESSION,
        'self.delta["seen"] += fresh',
        'self.delta["seen"] += fresh; self.db.execute("COMMIT"); self.db.execute("BEGIN IMMEDIATE")',
        _more("sqlite", "a_batch_that_fails_leaves_no_trace"),
    ),
    Fault(
        "an unfiltered request marks its page as seen",
        SESSION,
        "if not push.filtered or not self.filtered:",
        "if not self.filtered:",
        _contract("sqlite", "an_unfiltered_request_does_not_mark_its_page_as_seen"),
    ),
    Fault(
        "nobody returns dead workers' leases",
        LEASES,
        "if not lives.alive(epoch):",
        "if not epoch:",
        _contract("sqlite", "a_dead_workers_pages_go_to_others"),
    ),
    Fault(
        "living workers' leases are returned",
        LEASES,
        "if not lives.alive(epoch):",
        "if epoch:",
        _contract("sqlite", "a_living_workers_pages_stay_with_it"),
    ),
    Fault(
        "a worker does not lock its file",
        LIVENESS,
        "fcntl.flock(fd, fcntl.LOCK_EX)",
        "pass",
        _contract("sqlite", "a_living_workers_pages_stay_with_it"),
    ),
    Fault(
        "anybody's acknowledgement counts",
        SESSION,
        "DELETE FROM lease WHERE key = ? AND epoch = ? RETURNING",
        "DELETE FROM lease WHERE key = ? AND ? != '' RETURNING",
        _contract("sqlite", "an_acknowledgement_of_somebody_elses_page_changes_nothing"),
    ),
    Fault(
        "a lost worker's batch is applied",
        SESSION,
        "if not known or not self.frontier.lives.held(self.epoch):",
        "if not self.epoch:",
        _contract("sqlite", "nothing_of_a_lost_workers_batch_is_applied"),
    ),
    Fault(
        "returned leases go to the end of the queue",
        LEASES,
        '"INSERT INTO queue (seq, priority, key, deaths, payload) VALUES (?, ?, ?, ?, ?)"',
        '"INSERT INTO queue (priority, key, deaths, payload) SELECT ?2, ?3, ?4, ?5 WHERE ?1"',
        _contract("sqlite", "a_released_page_goes_to_the_front"),
    ),
    Fault(
        "deaths are counted for pages in the buffer",
        LEASES,
        "(entered or blame_all)",
        "(entered or True)",
        _contract("sqlite", "only_pages_inside_the_engine_are_blamed_for_a_death"),
    ),
    Fault(
        "deaths are forgotten when a page is handed back",
        LEASES,
        "(seq, priority, key, deaths, payload),\n    )",
        "(seq, priority, key, 0, payload),\n    )",
        _more("sqlite", "deaths_stay_with_a_page_that_is_handed_back"),
    ),
    Fault(
        "leaving counts as a death",
        SESSION,
        "return_leases(db, self.epoch, None)",
        "return_leases(db, self.epoch, self.terms.max_deliveries)",
        _contract("sqlite", "a_page_that_was_handed_back_has_no_deaths"),
    ),
    Fault(
        "poison is never buried",
        LEASES,
        "if now_dead >= max_deliveries:",
        "if now_dead < 0:",
        _contract("sqlite", "a_page_that_kills_its_workers_becomes_a_dead_letter"),
    ),
    Fault(
        "every worker runs start()",
        SESSION,
        'if batch.claim_start and self.state.get("start", "") == "":',
        "if batch.claim_start:",
        _contract("sqlite", "one_worker_runs_start"),
    ),
    Fault(
        "anybody ends start()",
        SESSION,
        'elif type(op) is StartDone and self.state.get("start", "") == self.epoch:',
        "elif type(op) is StartDone:",
        _contract("sqlite", "only_its_owner_ends_start"),
    ),
    Fault(
        "start() of a dead worker is nobody's",
        LEASES,
        "UPDATE state SET value = '' WHERE name = 'start' AND value = ?",
        "SELECT ?",
        _contract("sqlite", "start_of_a_dead_worker_is_run_by_another"),
    ),
    Fault(
        "start requests known by ordinal are queued twice",
        SESSION,
        'if push.start < self.state.get("start_position", 0):',
        "if push.start < 0:",
        _contract("sqlite", "start_of_a_dead_worker_is_run_by_another"),
    ),
    Fault(
        "a pause is ignored",
        SESSION,
        "if want and not paused:",
        "if want:",
        _contract("sqlite", "a_paused_crawl_gives_nothing_and_is_not_over"),
    ),
    Fault(
        "a crawl with live workers is dropped",
        STORE,
        "if alive and not force:",
        "if alive and force:",
        _contract("sqlite", "a_crawl_with_live_workers_is_dropped_only_by_force"),
    ),
    Fault(
        "any fingerprint scheme is let in",
        ENTRANCE,
        'if self.state.get("scheme", "") != self.terms.scheme.digest:',
        'if self.state.get("scheme", "") is None:',
        _contract("sqlite", "another_fingerprint_scheme_is_refused_with_a_sentence"),
    ),
    Fault(
        "a new run keeps the seen set",
        STATE,
        '("state", "queue", "lease", "seen", "worker")',
        '("state", "queue", "lease", "worker")',
        _contract("sqlite", "without_resume_an_unfinished_crawl_begins_anew"),
    ),
    Fault(
        "a crawl is finished while pages are leased",
        SESSION,
        'over = not state.get("waiting", 0) and not state.get("leased", 0)',
        'over = not state.get("waiting", 0)',
        _contract("sqlite", "only_a_crawl_that_is_over_can_be_finished"),
    ),
    Fault(
        "finished is never final",
        ENTRANCE,
        "(self.terms.explicit or ago < self.terms.hold_s)",
        "ago < self.terms.hold_s",
        _contract("sqlite", "a_late_worker_of_a_named_crawl_finds_it_finished_for_ever"),
    ),
    Fault(
        "low priorities come first",
        SESSION,
        'f"ORDER BY priority DESC, seq {direction} LIMIT ?"',
        'f"ORDER BY priority, seq {direction} LIMIT ?"',
        _contract("sqlite", "a_higher_priority_comes_first_whatever_its_size"),
    ),
    Fault(
        "a worker with all the work keeps taking",
        SESSION,
        "if not hungry:",
        "if not hungry or hungry:",
        _contract("sqlite", "a_hungry_worker_gets_an_even_part"),
    ),
    Fault(
        "a replayed dead letter finds its crawl finished",
        STORE,
        'state.add("waiting", len(chosen))\n                state.set("finished_at", 0.0)',
        'state.add("waiting", len(chosen))',
        _contract("sqlite", "replay_opens_a_finished_crawl_with_its_memory"),
    ),
)

_IN_REDIS = (
    Fault(
        "a repeated call is applied again",
        SYNC,
        "if applied == this_call then",
        "if applied == -1 then",
        ("tests/contract/test_frontier.py::test_a_call_that_is_repeated_is_applied_once",),
    ),
    Fault(
        "one of five hundred entries is dropped",
        COMMON,
        "math.min(i + CHUNK - 1, #values)",
        "math.min(i + CHUNK - 2, #values)",
        _contract("redis", "thousands_of_operations_fit_one_batch"),
    ),
    Fault(
        "an unfiltered request marks its page as seen",
        SYNC,
        "if not filtered or filter == 'none' then return true end",
        "if filter == 'none' then return true end",
        _contract("redis", "an_unfiltered_request_does_not_mark_its_page_as_seen"),
    ),
    Fault(
        "nobody returns dead workers' leases",
        COMMON,
        "at('workers'), '-inf', now - lease_ms)) do\n    return_leases",
        "at('workers'), '-inf', 0)) do\n    return_leases",
        _contract("redis", "a_dead_workers_pages_go_to_others"),
    ),
    Fault(
        "living workers' leases are returned",
        COMMON,
        "at('workers'), '-inf', now - lease_ms)) do\n    return_leases",
        "at('workers'), '-inf', now - 1)) do\n    return_leases",
        _contract("redis", "a_living_workers_pages_stay_with_it"),
    ),
    Fault(
        "all are taken for dead right after an outage",
        COMMON,
        "if alive_at > 0 and now - alive_at > lease_ms then set('reap_at', now + lease_ms) end",
        "",
        _more("redis", "nobody_is_taken_for_dead_right_after_an_outage"),
    ),
    Fault(
        "a lost worker's batch is applied",
        SYNC,
        "if not redis.call('ZSCORE', at('workers'), epoch) then\n",
        "redis.call('SET', at('reply:' .. epoch), cmsgpack.pack({tonumber(ARGV[3]) - 1, '', {}, 0}))\n"
        "if false then\n",
        _contract("redis", "nothing_of_a_lost_workers_batch_is_applied"),
    ),
    Fault(
        "returned leases go to the end of the queue",
        SYNC,
        "enqueue(released, true)",
        "enqueue(released, false)",
        _contract("redis", "a_released_page_goes_to_the_front"),
    ),
    Fault(
        "returned leases go to the wrong end of a lifo queue",
        COMMON,
        "if front and state('order') ~= 'lifo' then push = 'LPUSH' end",
        "if front then push = 'LPUSH' end",
        _more("redis", "a_released_page_goes_to_the_front_of_a_lifo_queue_too"),
    ),
    Fault(
        "deaths are counted for pages in the buffer",
        COMMON,
        "(inside[leases[i]] or not any)",
        "(inside[leases[i]] or true)",
        _contract("redis", "only_pages_inside_the_engine_are_blamed_for_a_death"),
    ),
    Fault(
        "leaving counts as a death",
        LEAVE,
        "return_leases(ARGV[1], 0, now_ms())",
        "return_leases(ARGV[1], 9, now_ms())",
        _contract("redis", "a_page_that_was_handed_back_has_no_deaths"),
    ),
    Fault(
        "poison is never buried",
        COMMON,
        "if max_deaths > 0 and deaths >= max_deaths then",
        "if max_deaths > 0 and deaths < 0 then",
        _contract("redis", "a_page_that_kills_its_workers_becomes_a_dead_letter"),
    ),
    Fault(
        "every worker runs start()",
        SYNC,
        "if ARGV[9] == '1' and state('start') == '' then",
        "if ARGV[9] == '1' then",
        _contract("redis", "one_worker_runs_start"),
    ),
    Fault(
        "anybody ends start()",
        SYNC,
        "elseif kind == 6 and state('start') == epoch then",
        "elseif kind == 6 then",
        _contract("redis", "only_its_owner_ends_start"),
    ),
    Fault(
        "start() of a worker that left is nobody's",
        COMMON,
        "if state('start') == epoch then set('start', '') end",
        "",
        _more("redis", "start_of_a_worker_that_left_is_run_by_another"),
    ),
    Fault(
        "start requests known by ordinal are queued twice",
        SYNC,
        "if start < number('start_position') then return false end",
        "",
        _contract("redis", "start_of_a_dead_worker_is_run_by_another"),
    ),
    Fault(
        "a pause is ignored",
        SYNC,
        "if want > 0 and number('paused') == 0 then",
        "if want > 0 then",
        _contract("redis", "a_paused_crawl_gives_nothing_and_is_not_over"),
    ),
    Fault(
        "a crawl with live workers is dropped",
        DROP,
        "if #alive > 0 and ARGV[2] == '0' then return alive end",
        "",
        _contract("redis", "a_crawl_with_live_workers_is_dropped_only_by_force"),
    ),
    Fault(
        "any fingerprint scheme is let in",
        JOIN,
        "if state('scheme') ~= ARGV[8] then return answer('scheme') end",
        "",
        _contract("redis", "another_fingerprint_scheme_is_refused_with_a_sentence"),
    ),
    Fault(
        "a new run keeps the seen set",
        COMMON,
        "  forget_seen()\n  redis.call('UNLINK', KEYS[1]",
        "  redis.call('UNLINK', KEYS[1]",
        _contract("redis", "without_resume_an_unfinished_crawl_begins_anew"),
    ),
    Fault(
        "a crawl is finished while pages are leased",
        FINISH,
        "number('waiting') > 0 or number('leased') > 0 or",
        "number('waiting') > 0 or",
        _contract("redis", "only_a_crawl_that_is_over_can_be_finished"),
    ),
    Fault(
        "finished is never final",
        JOIN,
        "(ARGV[4] == '1' or ago < tonumber(ARGV[5]))",
        "ago < tonumber(ARGV[5])",
        _contract("redis", "a_late_worker_of_a_named_crawl_finds_it_finished_for_ever"),
    ),
    Fault(
        "low priorities come first",
        SYNC,
        "redis.call('ZREVRANGE', at('priorities'), 0, 0)",
        "redis.call('ZRANGE', at('priorities'), 0, 0)",
        _contract("redis", "a_higher_priority_comes_first_whatever_its_size"),
    ),
    Fault(
        "a worker with all the work keeps taking",
        SYNC,
        "return math.max(0, math.min(want, even)), true",
        "return want, true",
        _contract("redis", "a_hungry_worker_gets_an_even_part"),
    ),
    Fault(
        "the Bloom filter looks at one bit of a key",
        COMMON,
        "for i = 0, layer[2] - 1 do",
        "for i = 0, 0 do",
        _contract("redis", "a_bloom_filter_grows_past_its_capacity_and_keeps_its_promise"),
    ),
    Fault(
        "the Bloom filter never grows",
        SYNC,
        "if layer[4] >= layer[3] then",
        "if layer[4] < 0 then",
        _contract("redis", "a_bloom_filter_grows_past_its_capacity_and_keeps_its_promise"),
    ),
    Fault(
        "older layers of the Bloom filter are not asked",
        SYNC,
        "for n = 1, last - 1 do",
        "for n = last, last - 1 do",
        _contract("redis", "a_bloom_filter_grows_past_its_capacity_and_keeps_its_promise"),
    ),
    Fault(
        "a replayed dead letter finds its crawl finished",
        REPLAY,
        "set('finished_at', 0)",
        "n = n + 0",
        _contract("redis", "replay_opens_a_finished_crawl_with_its_memory"),
    ),
)

_IN_THE_COURIER = (
    Fault(
        "acknowledgements go before links",
        COURIER,
        "        self._outbox.append(op)\n",
        "        self._outbox.appendleft(op) if isinstance(op, Ack) else self._outbox.append(op)\n",
        _more("memory", "a_page_with_more_links_than_a_batch_is_acknowledged_after_them"),
    ),
    Fault(
        "a crawl is over while others hold pages",
        PROTOCOL,
        "return not self.waiting and not self.leased and self.start in",
        "return not self.waiting and self.start in",
        _contract("sqlite", "a_crawl_is_not_over_while_somebody_holds_a_page"),
    ),
    Fault(
        "a crawl is over while start() runs",
        PROTOCOL,
        'not self.leased and self.start in ("done", "failed")',
        'not self.leased and self.start in ("mine", "theirs", "done", "failed")',
        _contract("sqlite", "a_crawl_is_not_over_before_start_is_done"),
    ),
    Fault(
        "a crawl is over while the outbox is full",
        COURIER,
        "return not (self._outbox or self._batch or self.buffer or self.inside)",
        "return not (self.buffer or self.inside)",
        _more("memory", "a_crawl_is_not_over_while_something_waits_in_the_outbox"),
    ),
    Fault(
        "a batch without an answer is forgotten",
        COURIER,
        "    def _unavailable(self, exc: FrontierUnavailable) -> None:\n",
        "    def _unavailable(self, exc: FrontierUnavailable) -> None:\n        self._batch = None\n",
        _courier("a_store_that_is_away_is_tried_again_and_nothing_is_lost"),
    ),
    Fault(
        "after a batch that failed the next ones are sent",
        COURIER,
        "        self._broken = True\n",
        "        self._broken = False\n",
        _courier("no_acknowledgement_overtakes_a_batch_that_failed"),
    ),
    Fault(
        "a worker taken for dead drops its links",
        COURIER,
        "ops = [*again, *self._batch_ops, *self._outbox]",
        "ops = [*again]",
        _courier("a_worker_taken_for_dead_keeps_its_children_and_drops_its_leases"),
    ),
    Fault(
        "a worker taken for dead keeps its buffer",
        COURIER,
        "        self.buffer.clear()\n",
        "",
        _more("memory", "a_worker_taken_for_dead_gives_out_nothing_of_what_it_held"),
    ),
    Fault(
        "a worker that comes back begins a new run",
        COURIER,
        "self.frontier.join(replace(self.terms, resume=True, explicit=True))",
        "self.frontier.join(self.terms)",
        _courier("a_worker_that_asked_to_start_afresh_never_wipes_the_crawl_when_it_comes_back"),
    ),
    Fault(
        "a hung worker keeps its leases",
        COURIER,
        "if stalled_s > self.limits.stall_s:",
        "if stalled_s < 0:",
        _courier("a_hung_loop_gives_its_leases_away"),
    ),
    Fault(
        "the heart does not beat",
        COURIER,
        "session.beat()",
        "pass",
        _more("redis", "a_worker_with_nothing_to_say_stays_alive"),
    ),
    Fault(
        "a hungry worker gets nothing of a full buffer",
        COURIER,
        "elif reply.hungry and not reply.waiting and len(self.buffer) > 1:",
        "elif reply.hungry and reply.waiting < 0:",
        _more("memory", "a_worker_with_a_full_buffer_gives_half_to_a_hungry_one"),
    ),
    Fault(
        "the store is not told what is inside the engine",
        COURIER,
        "        self._entered.append(delivery.key)\n",
        "",
        _more("memory", "the_store_learns_which_pages_are_inside_the_engine"),
    ),
    Fault(
        "the outbox has no bound",
        COURIER,
        "            self._room.clear()\n",
        "            pass\n",
        _courier("a_full_outbox_makes_its_writer_wait"),
    ),
    Fault(
        "the local memory has no bound",
        COURIER,
        "if len(self._keys) > self.size:",
        "if len(self._keys) < 0:",
        _courier("the_local_memory_is_bounded"),
    ),
    Fault(
        "a worker leaves without a word",
        COURIER,
        "            session.leave()\n            if over:",
        "            if over:",
        _courier("closing_hands_the_buffer_back"),
    ),
    Fault(
        "a crawl that is over is not marked",
        COURIER,
        "over = finished and session.finish()",
        "over = finished",
        _courier("a_crawl_is_over_only_when_all_is_flushed_and_acknowledged"),
    ),
)

_AROUND_SCRAPY = (
    Fault(
        "a page is acknowledged when it enters the engine",
        SCHEDULER,
        "if request not in in_progress and request not in in_callback",
        "if True",
        _death("between-links-sqlite", "item-in-pipeline-sqlite"),
    ),
    Fault(
        "a page that failed is acknowledged",
        SCHEDULER,
        "if failure is None:",
        "if failure is None or failure:",
        _requests("whatever_goes_wrong_with_a_page_is_kept_with_its_reason[sqlite]"),
    ),
    Fault(
        "what cannot be stored burns its page",
        SCHEDULER,
        "            self._unserializable(request, exc)\n",
        "            self._unserializable(request, exc)\n            courier._known.add(key)\n",
        _requests("what_cannot_be_stored_is_reported_and_does_not_burn_its_page[sqlite]"),
    ),
    Fault(
        "equal unfiltered requests are one",
        KEYS,
        "if not self.filtered(request):\n            return os",
        "if not request:\n            return os",
        _worker("equal_unfiltered_requests_have_keys_of_their_own"),
    ),
    Fault(
        "a spider with an empty buffer closes",
        SCHEDULER,
        "return not self._ran_out",
        "return bool(self.courier.buffer)",
        _worker("a_resumed_crawl_appends_and_a_new_one_overwrites"),
    ),
    Fault(
        "pages that were there at two deaths run beside others",
        SCHEDULER,
        "self._solo = delivery.deaths >= SOLO_AFTER_DEATHS",
        "self._solo = False",
        _worker("pages_that_were_there_at_two_deaths_run_alone"),
    ),
    Fault(
        "start requests have no ordinal",
        SCHEDULER,
        "key, filtered, ordinal = self.keys.start_key(request), True, -1",
        "key, ordinal = self.keys.key(request), -1",
        _death("start-done-unsent-sqlite"),
    ),
    Fault(
        "a start() that raised is done",
        SPIDERMW,
        "scheduler.start_done(failed=True)",
        "scheduler.start_done(failed=False)",
        _requests("start_that_raises_is_run_again_by_the_next_worker[sqlite]"),
    ),
    Fault(
        "start() is done before its items are",
        SPIDERMW,
        "        await self._start_items.wait()\n",
        "",
        _death("last-start-item-in-pipeline-sqlite"),
    ),
    Fault(
        "start() of a worker taken for dead is nobody's",
        SCHEDULER,
        "            self.courier.claim_start = True\n",
        "            pass\n",
        _worker("a_worker_taken_for_dead_in_the_midst_of_start_ends_it_all_the_same"),
    ),
    Fault(
        "every worker runs start() whoever has it",
        SPIDERMW,
        "if scheduler is None or not await scheduler.claim_start():",
        "if scheduler is None or await scheduler.claim_start() is None:",
        (
            *_worker("start_runs_once_however_many_workers_there_are"),
            *_requests("five_replicas_run_start_once[sqlite]"),
        ),
    ),
    Fault(
        "the deadline is not set",
        LIFECYCLE,
        "self._loop.call_later(self.stop_s, self._force",
        "self._loop.call_later(999, self._force",
        _life("a_long_download_is_handed_back_at_the_deadline[sqlite]"),
    ),
    Fault(
        "at the deadline downloads are waited for",
        LIFECYCLE,
        "        slot.inprogress = _Forgiving()\n",
        "",
        _life("a_long_download_is_handed_back_at_the_deadline[sqlite]"),
    ),
    Fault(
        "a blocked loop is waited for",
        LIFECYCLE,
        'self._exit_hard("a callback blocks the event loop")',
        "pass",
        _life("a_callback_that_blocks_the_loop_is_left_behind"),
    ),
    Fault(
        "a closing that hangs is waited for",
        LIFECYCLE,
        'self._exit_hard("closing hangs")',
        "pass",
        _integration(
            "cases_stop",
            "who_listens_to_the_end_for_ever_is_left_behind[closed-AsyncCrawlerProcess]",
        ),
    ),
    Fault(
        "what the spider started is waited for",
        LIFECYCLE,
        'self._exit_hard("something that the spider started still runs")',
        "pass",
        _integration(
            "cases_stop", "whatever_is_stuck_is_handed_back_at_the_deadline[reactor-thread]"
        ),
    ),
    Fault(
        "a thread that a callback has left is waited for",
        "clusterscrapy/commands/worker.py",
        "            end_without_threads(crawler, self.exitcode)\n",
        "",
        _integration("cases_stop", "whatever_is_stuck_is_handed_back_at_the_deadline[thread]"),
    ),
    Fault(
        "a cancelled callback keeps its page for ever",
        SCHEDULER,
        "        catch_escapes(self.crawler.engine)\n",
        "",
        _integration(
            "escapes", "an_exception_that_is_no_exception_is_an_error_of_its_page[sqlite]"
        ),
    ),
    Fault(
        "a page that downloads itself again is done",
        SCHEDULER,
        "if request not in in_progress and request not in in_callback",
        "if request not in in_progress",
        _integration(
            "escapes", "a_page_that_downloads_itself_again_is_not_done_before_its_callback[sqlite]"
        ),
    ),
    Fault(
        "a store that went back is not noticed",
        SYNC,
        "if applied ~= this_call and applied ~= this_call - 1 then",
        "if false then",
        _back("a_confirmed_call_that_is_forgotten_is_noticed_and_leases_return"),
    ),
    Fault(
        "an epoch that the store does not know yet was taken for dead",
        SYNC,
        "return {redis.call('ZSCORE', at('reaped'), epoch) and 'lost' or 'behind'}",
        "return {'lost'}",
        _back("a_worker_that_the_store_does_not_know_yet_notices"),
    ),
    Fault(
        "nothing is told again to a store that went back",
        COURIER,
        "again = self._journal.everything()",
        "again = []",
        _back("a_courier_says_everything_again[before the claim]"),
    ),
    Fault(
        "the end of start() is not told again",
        COURIER,
        "            self._put(self._start_done)\n",
        "            pass\n",
        _back("a_courier_says_everything_again[before the end of start()]"),
    ),
    Fault(
        "a drained worker says it has finished",
        OUTCOME,
        "code = DRAINED if work_left else FINISHED",
        "code = FINISHED",
        _life("a_second_signal_does_the_same_at_once[sqlite]"),
    ),
    Fault(
        "items stay in a buffer",
        FEEDS,
        "slot.file.flush()",
        "pass",
        _death("finished-not-left-sqlite"),
    ),
    Fault(
        "half a line is kept",
        FEEDS,
        "if keep < size:",
        "if keep > size:",
        _death("item-half-written-sqlite"),
    ),
    Fault(
        "a resumed crawl overwrites its items",
        FEEDS,
        'options["overwrite"] = False',
        "pass",
        _worker("a_resumed_crawl_appends_and_a_new_one_overwrites"),
    ),
    Fault(
        "a new crawl appends to another's items",
        FEEDS,
        "file.truncate(0)\n        return True",
        "return True",
        _worker("a_resumed_crawl_appends_and_a_new_one_overwrites"),
    ),
    Fault(
        "a worker killed before it emptied its file leaves that to nobody",
        FEEDS,
        'if not opening.touched and options.get("overwrite")',
        'if opening.fresh and options.get("overwrite")',
        _integration("cases_feeds", f"{_KILLED_UNPREPARED}[sqlite-out.jl]"),
    ),
    Fault(
        "a worker killed before it claimed its file has its successor put it aside",
        FEEDS,
        "fresh=not scheduler.opening.touched",
        "fresh=scheduler.opening.fresh",
        _integration("cases_feeds", f"{_KILLED_UNPREPARED}[sqlite-out.json]"),
    ),
    Fault(
        "the second of two first workers empties the file of the first",
        FEEDS,
        "if os.fstat(file.fileno()).st_mtime >= unless_written_since + ahead - _TICK_S:",
        "if ahead is None:",
        ("tests/unit/test_feeds.py",),
    ),
    Fault(
        "SQLite forgets that requests were handed out",
        SESSION,
        'if taken and not self.state.get("touched", 0):',
        "if not taken:",
        _more("sqlite", "who_joins_knows_whether_anything_was_handed_out"),
    ),
    Fault(
        "a paused crawl is abandoned too",
        "clusterscrapy/frontier/expiry.py",
        ' and status.state != "paused"',
        "",
        _integration("abandoned", "a_worker_drops_what_is_abandoned_and_nothing_else[sqlite]"),
    ),
    Fault(
        "a crawl with workers inside is abandoned too",
        "clusterscrapy/frontier/expiry.py",
        'not status.workers and status.state != "paused"',
        'status.state != "paused"',
        _integration("abandoned", "the_list_says_who_is_at_work_and_what_is_abandoned[redis]"),
    ),
    Fault(
        "pages that are out do not count for the bound in SQLite",
        SESSION,
        'bounds.pages - done - self._now("leased")',
        "bounds.pages - done",
        _more("sqlite", "no_more_pages_are_done_than_the_bound_whoever_works"),
    ),
    Fault(
        "pages that are out do not count for the bound in Redis",
        SYNC,
        "pages - done - number('leased')",
        "pages - done",
        _more("redis", "no_more_pages_are_done_than_the_bound_whoever_works"),
    ),
    Fault(
        "a crawl at its bound is closed as finished",
        SCHEDULER,
        'self.close_reason = f"max_{limit}"',
        'self.close_reason = "finished"',
        _integration("bounds", "time_ends_the_crawl_over_restarts[sqlite]"),
    ),
    Fault(
        "Redis forgets that requests were handed out",
        SYNC,
        "      set('touched', 1)\n",
        "",
        _more("redis", "who_joins_knows_whether_anything_was_handed_out"),
    ),
)

_AFTER_THE_END = (
    Fault(
        "a letter of a former run shares its key with a page of this one",
        STORE,
        "key if run == this_run else old_key(key, run)",
        "key",
        _more("sqlite", "an_old_runs_dead_letter_can_be_replayed_beside_the_same_page"),
    ),
    Fault(
        "a letter of a former run shares its key with a page of this one",
        REPLAY,
        "then entry = renamed(entry, field) end",
        "then n = n + 0 end",
        _more("redis", "an_old_runs_dead_letter_can_be_replayed_beside_the_same_page"),
    ),
    Fault(
        "a crawl that ended unmarked is begun anew",
        ENTRANCE,
        "over_at or time.time() - self.terms.hold_s",
        "time.time() - self.terms.hold_s",
        _death("before-finish-sqlite"),
    ),
    Fault(
        "the memory goes while somebody is still there",
        STATE,
        'if not db.execute("SELECT 1 FROM worker").fetchone():',
        "if db:",
        _contract("sqlite", "a_finished_crawl_drops_its_memory_unless_it_is_to_be_kept"),
    ),
    Fault(
        "the memory goes while somebody is still there",
        LEAVE,
        "redis.call('ZCARD', at('workers')) == 0",
        "true",
        _contract("redis", "a_finished_crawl_drops_its_memory_unless_it_is_to_be_kept"),
    ),
    Fault(
        "workers go on remembering what was forgotten",
        COURIER,
        "self._known.clear()  # somebody",
        "pass  # somebody",
        _more("sqlite", "a_worker_does_not_remember_what_somebody_had_forgotten"),
    ),
    Fault(
        "nobody is told that a URL was forgotten",
        FORGET,
        "  count('generation', 1)\n",
        "",
        _more("redis", "a_worker_does_not_remember_what_somebody_had_forgotten"),
    ),
)

_ITEMS_AND_SEEDS = (
    Fault(
        "a refused worker opens its feeds",
        FEEDS,
        "            exporter.feeds.clear()\n",
        "            pass\n",
        (
            "tests/integration/test_cases_feeds.py::test_items_survive_a_worker_that_is_refused[out.jl]",
        ),
    ),
    Fault(
        "two workers write one JSON file",
        FEEDS,
        "fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        _integration(
            "cases_feeds", "two_workers_lose_no_item_of_a_file_that_is_written_at_the_end"
        ),
    ),
    Fault(
        "a Redis without memory ends the crawl",
        "clusterscrapy/frontier/redis.py",
        "isinstance(exc, _TRANSIENT) or _TRANSIENT_WORDS.search(str(exc))",
        'str(exc).startswith("OOM")',
        _integration("cases_outage", "a_full_redis_pauses_the_crawl_and_more_room_ends_the_pause"),
    ),
    Fault(
        "a bad seed ends the seeding",
        "clusterscrapy/seeds.py",
        "except (BadSeed, CodecError) as exc:",
        "except CodecError as exc:",
        _integration("seeds", "bad_seeds_are_kept_with_their_reason_and_the_rest_goes_on[sqlite]"),
    ),
    Fault(
        "a spider that closes itself early is restarted for ever",
        SCHEDULER,
        "work_left and not self._ran_out",
        "work_left and False",
        _life("a_spider_that_closes_itself_as_finished_with_work_left_has_not_finished"),
    ),
    Fault(
        "start requests are unknown to people",
        "clusterscrapy/commands/frontier.py",
        'if of_start.state == "done":',
        "if False:",
        _integration(
            "hands", "a_start_request_past_the_filter_is_found_and_can_be_forgotten[redis]"
        ),
    ),
    Fault(
        "a verbatim URL has the key of the canonical one",
        KEYS,
        '\n            or "verbatim_url" in request.meta',
        "",
        ("tests/unit/test_dupefilter.py",),
    ),
)

_OF_SCRAPY_REDIS = (
    Fault(
        "seeds are dropped as soon as they are taken",
        SEEDS_LUA,
        "  redis.call('ZADD', hands, now, hand)\n",
        "  local seeds = inside(hand)\n  redis.call('DEL', hand)\n  return {1, seeds}\n",
        _integration("scrapy_redis", "seeds_in_the_hand_of_a_dead_worker_come_back[list]"),
    ),
    Fault(
        "a batch of seeds is confirmed before it is stored",
        SEED_KEYS,
        "        if stored.result():\n            self.key.stored()",
        "        if not stored.result() or True:\n            self.key.stored()",
        _integration("scrapy_redis", "seeds_that_no_store_has_confirmed_go_back_to_their_key"),
    ),
    Fault(
        "nobody gives back the seeds of a dead worker",
        SEEDS_LUA,
        "  if name ~= hand then\n    put_back(name)",
        "  if false then\n    put_back(name)",
        _integration("scrapy_redis", "seeds_in_the_hand_of_a_dead_worker_come_back[set]"),
    ),
    Fault(
        "a living worker's seeds are given to others",
        SEEDS_LUA,
        "'-inf', now - lease,",
        "'-inf', now + lease,",
        _integration("scrapy_redis", "two_readers_take_each_seed_once_and_hold_it_while_they_beat"),
    ),
    Fault(
        "a lost answer costs a batch of seeds",
        SEEDS_LUA,
        "if wanted > 0 and mine == 0 and kind ~= 'none' then",
        "if wanted > 0 and kind ~= 'none' then\n  redis.call('DEL', hand)",
        _integration("scrapy_redis", "an_answer_that_was_lost_costs_no_seed"),
    ),
    Fault(
        "workers close while seeds are in a dead worker's hand",
        SEEDS_LUA,
        "local left = redis.call('ZCARD', hands) - mine",
        "local left = 0",
        _integration("scrapy_redis", "nobody_closes_while_seeds_are_in_a_dead_hand"),
    ),
    Fault(
        "seeds lie in hand when their worker has left",
        SEED_KEYS,
        "await self._ask(0 if self.key.unconfirmed else PUT_BACK)",
        "await self._ask(0)",
        _integration("scrapy_redis", "seeds_that_no_store_has_confirmed_go_back_to_their_key"),
    ),
    Fault(
        "all seeds are taken at once",
        SEED_KEYS,
        "2 * courier.limits.prefetch - reply.waiting",
        "10**9",
        _integration("scrapy_redis", "a_worker_that_is_stopped_leaves_the_seeds"),
    ),
    Fault(
        "a bad seed of a key ends the batch",
        SEED_KEYS,
        "        except Exception as exc:  # noqa: BLE001 - whatever a spider raises is a reason",
        "        except LookupError as exc:",
        _integration("scrapy_redis", "bad_seeds_are_counted_and_kept_and_the_batch_goes_on"),
    ),
    Fault(
        "a seed-fed spider that was idle is not started again",
        SEED_KEYS,
        '"CLUSTER_FINISHED_HOLD_SECONDS", 0,',
        '"CLUSTER_FINISHED_HOLD_SECONDS", 60,',
        _integration("scrapy_redis", "a_spider_that_was_idle_may_be_started_again_at_once"),
    ),
    Fault(
        "the spider goes on reading by itself",
        SEED_KEYS,
        "    spider.next_requests = lambda: iter(())\n",
        "",
        _integration("scrapy_redis", "a_spiders_own_idle_handler_is_kept_and_takes_no_seed"),
    ),
    Fault(
        "any project with a REDIS_URL gets its frontier there",
        THEIR_SETTINGS,
        "    if not _in_use(settings):\n        return []\n",
        "",
        ("tests/unit/test_scrapy_redis_settings.py",),
    ),
    Fault(
        "entries are unpickled unasked",
        BACKLOG,
        "if name in _PICKLES and not unpickle:",
        "if False:",
        _integration("import_scrapy_redis", "nothing_is_unpickled_unless_it_is_asked_for"),
    ),
    Fault(
        "an import that is repeated queues dont_filter twice",
        BACKLOG,
        "return sower.push_of(request, key_of(",
        "return sower.push_of(request) or (key_of(",
        _integration(
            "import_scrapy_redis",
            "what_waits_is_queued_once_however_often_it_is_imported[FifoQueue]",
        ),
    ),
    Fault(
        "a queue with bad entries is deleted",
        "clusterscrapy/commands/import_scrapy_redis.py",
        "elif opts.delete and not sown.bad:",
        "elif opts.delete:",
        _integration("import_scrapy_redis", "a_bad_entry_is_kept_and_the_rest_goes_on"),
    ),
    Fault(
        "what scrapy-redis has seen is known by Scrapy's fingerprint",
        SEEN,
        '"body": body.hex()}',
        '"body": body.hex(), "headers": {}}',
        _integration("import_scrapy_redis", "pages_that_it_has_seen_are_not_fetched_again"),
    ),
    Fault(
        "answers of the store are counted against the wrong requests",
        SEEN,
        "queued = [not known and next(answers) for known in self._known]",
        "queued = list(reply.queued)",
        _integration("import_scrapy_redis", "pages_that_it_has_seen_are_not_fetched_again"),
    ),
)

FAULTS = (
    *_IN_SQLITE,
    *_IN_REDIS,
    *_IN_THE_COURIER,
    *_AROUND_SCRAPY,
    *_AFTER_THE_END,
    *_ITEMS_AND_SEEDS,
    *_OF_SCRAPY_REDIS,
)
