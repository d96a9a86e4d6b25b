"""An operation over HTTP: what every way of failing proves, and what it does not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from urllib.parse import urlsplit

import httpx
import httpx2
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st
from units.test_process import run

from stopkit.operation import Absent, Done, NoAnswer
from stopkit.stop import StopPolicy
from stopkit.testing import run_virtual
from stopkit.units import Endpoint, HttpUnit
from stopkit.units.answers import GoingOn, Reply, Undecided, read_reply, read_status

URL = "https://service.test/orders"
STATUS = Endpoint("GET", "https://service.test/status/{key}")
CANCEL = Endpoint("POST", "https://service.test/cancel/{key}")
POLICY = StopPolicy(grace=2.0, verify_wait=3.0)


def outcome_of(routes, **options):
    """Send one operation with mocked routes; its report."""

    async def main(clock):
        with respx.mock(assert_all_called=False) as router:
            routes(router)
            async with httpx.AsyncClient() as client:
                options.setdefault("key", "op_1")
                async with HttpUnit(
                    client, "POST", URL, clock=clock, stop=POLICY, **options
                ) as unit:
                    return await unit.wait()

    return run_virtual(main)


ERRORS = [
    (httpx.ConnectError("refused"), "not_started"),
    (httpx.ConnectTimeout("slow"), "not_started"),
    (httpx.PoolTimeout("full"), "not_started"),
    (httpx.WriteTimeout("slow"), "unknown"),
    (httpx.ReadTimeout("slow"), "unknown"),
    (httpx.WriteError("reset"), "unknown"),
    (httpx.ReadError("reset"), "unknown"),
    (httpx.CloseError("reset"), "unknown"),
    (httpx.RemoteProtocolError("no reply"), "unknown"),
    (httpx.ProxyError("proxy"), "unknown"),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: type(value).__name__)
def test_a_failure_without_a_status_to_ask(error, status):
    report = outcome_of(lambda router: router.post(URL).mock(side_effect=error))
    assert report.outcome.status == status
    assert report.outcome.key == "op_1"
    assert report.outcome.effects == ("none" if status == "not_started" else "unverified")
    (exchange,) = report.http.exchanges
    assert exchange.bytes_sent is (status == "unknown")
    assert type(error).__name__ in exchange.error
    assert bool(report.unconfirmed) is (status == "unknown")


@pytest.mark.parametrize("error", [error for error, status in ERRORS if status == "unknown"])
@pytest.mark.parametrize(
    ("answer", "status", "effects"),
    [
        (httpx.Response(200, json={"status": "succeeded", "id": 7}), "succeeded", "confirmed"),
        (httpx.Response(404), "unknown", "confirmed_absent"),
        (httpx.Response(200, json={"status": "cancelled"}), "unknown", "confirmed_absent"),
        (httpx.Response(200, json={"status": "processing"}), "unknown", "unverified"),
        (httpx.Response(200, json={"status": "who knows"}), "unknown", "unverified"),
        (httpx.Response(500), "unknown", "unverified"),
        (httpx.ReadError("reset"), "unknown", "unverified"),
    ],
)
def test_then_the_status_decides(error, answer, status, effects):
    def routes(router):
        router.post(URL).mock(side_effect=error)
        how = {"side_effect": answer} if isinstance(answer, Exception) else {"return_value": answer}
        router.get("https://service.test/status/op_1").mock(**how)

    report = outcome_of(routes, status=STATUS)
    assert (report.outcome.status, report.outcome.effects) == (status, effects)
    if effects == "unverified":
        assert report.outcome.check == "ask https://service.test/status/op_1"


def test_absent_is_not_believed_while_the_request_may_be_on_its_way():
    """404, 404, and then it is there after all."""
    answers = [
        httpx.Response(404),
        httpx.Response(404),
        httpx.Response(200, json={"status": "done"}),
    ]

    def routes(router):
        router.post(URL).mock(side_effect=httpx.ReadError("reset"))
        router.get("https://service.test/status/op_1").mock(side_effect=answers)

    report = outcome_of(routes, status=STATUS)
    assert report.outcome.status == "succeeded"
    assert [one.purpose for one in report.http.exchanges] == ["operation"] + ["status"] * 3


REPLIES = [
    (httpx.Response(200, text="made"), "succeeded", "confirmed"),
    (httpx.Response(201, text="made"), "succeeded", "confirmed"),
    (httpx.Response(204), "succeeded", "confirmed"),
    (httpx.Response(202), "unknown", "unverified"),
    (httpx.Response(301, headers={"Location": "/x"}), "unknown", "unverified"),
    (httpx.Response(307, headers={"Location": "/x"}), "unknown", "unverified"),
    (httpx.Response(400, json={"error": {"type": "invalid_request_error"}}), "failed", "none"),
    (httpx.Response(400, json={"error": {"type": "idempotency_error"}}), "not_started", "none"),
    (httpx.Response(401), "failed", "none"),
    (httpx.Response(404), "failed", "none"),
    (httpx.Response(408), "unknown", "unverified"),
    (httpx.Response(409), "unknown", "unverified"),
    (httpx.Response(422), "failed", "none"),
    (httpx.Response(429, headers={"Retry-After": "7"}), "not_started", "none"),
    (httpx.Response(500), "unknown", "unverified"),
    (httpx.Response(502), "unknown", "unverified"),
    (httpx.Response(503), "unknown", "unverified"),
]


@pytest.mark.parametrize(
    ("reply", "status", "effects"),
    REPLIES,
    ids=lambda value: str(value.status_code) if isinstance(value, httpx.Response) else value,
)
def test_a_reply(reply, status, effects):
    report = outcome_of(lambda router: router.post(URL).mock(return_value=reply))
    assert (report.outcome.status, report.outcome.effects) == (status, effects)
    assert report.http.exchanges[0].status == reply.status_code


def test_a_key_with_other_parameters_is_a_conflict():
    reply = httpx.Response(400, json={"error": {"type": "idempotency_error"}})
    report = outcome_of(lambda router: router.post(URL).mock(return_value=reply))
    assert report.outcome.cause == "key_conflict"


def test_too_many_requests_says_when_to_come_back():
    reply = httpx.Response(429, headers={"Retry-After": "7"})
    report = outcome_of(lambda router: router.post(URL).mock(return_value=reply))
    assert report.outcome.cause == "rate_limited"
    assert report.http.retry_after == 7.0


def test_a_conflict_waits_for_the_request_that_is_at_work():
    answers = [
        httpx.Response(200, json={"status": "processing"}),
        httpx.Response(200, json={"status": "succeeded"}),
    ]

    def routes(router):
        router.post(URL).mock(return_value=httpx.Response(409))
        router.get("https://service.test/status/op_1").mock(side_effect=answers)

    assert outcome_of(routes, status=STATUS).outcome.status == "succeeded"


def test_a_replayed_answer_is_recognised():
    reply = httpx.Response(200, text="first", headers={"Idempotent-Replayed": "true"})
    report = outcome_of(lambda router: router.post(URL).mock(return_value=reply))
    assert report.http.replayed
    assert "a replay of its first answer" in report.outcome.evidence


def test_what_is_sent():
    seen = []

    def routes(router):
        def answer(request):
            seen.append(request)
            return httpx.Response(200, headers={"Request-Id": "req_9"})

        router.post(URL).mock(side_effect=answer)

    report = outcome_of(
        routes, json={"a": 1}, deadline=30.0, remaining_header="X-Remaining-Ms", headers={"X": "y"}
    )
    (request,) = seen
    assert request.headers["Idempotency-Key"] == "op_1"
    assert request.headers["X-Remaining-Ms"] == "30000"
    assert (request.headers["X"], request.headers["Content-Type"]) == ("y", "application/json")
    assert json.loads(request.content) == {"a": 1}
    assert request.extensions["timeout"]["read"] == 30.0
    assert report.http.exchanges[0].request_id == "req_9"


def test_the_client_keeps_its_own_time_limits():
    seen = []

    def routes(router):
        router.post(URL).mock(
            side_effect=lambda request: seen.append(request) or httpx.Response(200)
        )

    outcome_of(routes)
    assert seen[0].extensions["timeout"]["read"] == 5.0


def test_past_its_retention_a_key_is_not_sent_again():
    report = outcome_of(lambda router: None, retention=60.0, first_sent_at=1.0)
    assert report.outcome.status == "not_started"
    assert report.outcome.cause == "key_past_retention"
    assert report.http.exchanges == ()


def test_past_its_retention_absent_proves_nothing():
    def routes(router):
        async def slow(request):
            await asyncio.sleep(2)
            raise httpx.ReadError("reset", request=request)

        router.post(URL).mock(side_effect=slow)
        router.get("https://service.test/status/op_1").mock(return_value=httpx.Response(404))

    report = outcome_of(routes, status=STATUS, retention=1.0, first_sent_at=1_000_000.0)
    assert (report.outcome.status, report.outcome.effects) == ("unknown", "unverified")
    assert "forgotten" in report.outcome.evidence[0]


def test_httpx2_is_accepted():
    def answer(request):
        return httpx2.Response(200, text=request.headers["Idempotency-Key"])

    async def main():
        async with (
            httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client,
            HttpUnit(client, "POST", URL, key="op_2") as unit,
        ):
            return await unit.wait()

    assert run(main).outcome.output == "op_2"


@given(st.integers(100, 599), st.booleans(), st.binary(max_size=40))
def test_no_reply_claims_more_than_it_proves(status, writes, body):
    read = read_reply(Reply(status, {}, body), writes=writes)
    if isinstance(read, Undecided):
        assert not 200 <= status < 300 or status == 202
    elif read.status == "succeeded":
        assert 200 <= status < 300
    else:
        assert 400 <= status < 600
        assert read.effects == "none"
        assert not (writes and status >= 500)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(200, {}, b'{"status": "succeeded"}'), Done),
        (Reply(410, {}, b""), Absent),
        (Reply(200, {}, b'{"status": "RUNNING"}'), GoingOn),
        (Reply(200, {}, b"[]"), NoAnswer),
        (Reply(200, {}, b"not json"), NoAnswer),
        (Reply(503, {}, b""), NoAnswer),
    ],
)
def test_the_usual_reading_of_a_status(reply, kind):
    assert isinstance(read_status(reply), kind)


class Service:
    """A real server on loopback: it does its work by key, and loses replies as it is told."""

    def __init__(self):
        self.done = Counter()
        self.requests = []
        self.lose = "nothing"
        self.received = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = []
        self.serving = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_):
        self.release.set()
        self.server.close()
        await self.server.wait_closed()
        if self.serving:
            await asyncio.wait(self.serving)

    async def serve(self, reader, writer):
        task = asyncio.current_task()
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        try:
            await self.answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, reader, writer):
        if self.lose == "before_reading":
            writer.transport.abort()
            return
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n")[0].split(" ")
        headers = dict(
            line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
        )
        await reader.readexactly(int(headers.get("content-length", 0)))
        path = urlsplit(target).path
        self.requests.append((method, path))
        if path.startswith("/status/"):
            key = path.rpartition("/")[2]
            word = "succeeded" if self.done[key] else "cancelled" if key in self.cancelled else ""
            self.reply(writer, 200 if word else 404, json.dumps({"status": word}))
        elif path.startswith("/cancel/"):
            self.cancelled.append(path.rpartition("/")[2])
            self.reply(writer, 202, "")
        else:
            await self.work(headers["idempotency-key"], writer)
        await writer.drain()

    async def work(self, key, writer):
        self.received.set()
        if self.lose == "before_work":
            writer.transport.abort()
            return
        if self.lose == "waits":
            await self.release.wait()
            return
        self.done[key] += 1
        if self.lose == "after_work":
            writer.transport.abort()
        elif self.lose == "half_a_reply":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhal")
        elif self.lose == "never_replies":
            await self.release.wait()
        else:
            self.reply(writer, 200, "made")

    @staticmethod
    def reply(writer, status, body):
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body.encode())


def on_loopback(lose, *, stop=False, url=None, **options):
    async def main():
        async with Service() as service, httpx.AsyncClient() as client:
            service.lose = lose
            options.setdefault("status", Endpoint("GET", service.url + "/status/{key}"))
            options.setdefault("absent_after", 0.1)
            options.setdefault("stop", StopPolicy(grace=0.2, verify_wait=2.0))
            async with HttpUnit(
                client, "POST", (url or service.url) + "/orders", json={}, key="op_1", **options
            ) as unit:
                if stop:
                    await service.received.wait()
                    report = await unit.stop()
                else:
                    report = await unit.wait()
            return report, service

    return run(main)


@pytest.mark.parametrize(
    ("lose", "status", "effects", "writes"),
    [
        ("nothing", "succeeded", "confirmed", 1),
        ("before_reading", "unknown", "confirmed_absent", 0),
        ("before_work", "unknown", "confirmed_absent", 0),
        ("after_work", "succeeded", "confirmed", 1),
        ("half_a_reply", "succeeded", "confirmed", 1),
    ],
)
def test_a_real_server_that_loses_replies(lose, status, effects, writes):
    report, service = on_loopback(lose)
    assert service.done["op_1"] == writes
    assert service.requests.count(("POST", "/orders")) <= 1
    if lose == "before_reading":
        # Every reply is lost, that of the status too.
        effects = "unverified"
    assert (report.outcome.status, report.outcome.effects) == (status, effects)


def test_a_port_where_nobody_listens():
    report, _ = on_loopback("nothing", url="http://127.0.0.1:1")
    assert report.outcome.status == "not_started"
    assert report.http.exchanges[0].bytes_sent is False


def test_a_stop_of_what_nobody_can_ask_about_stays_unknown():
    report, service = on_loopback("waits", stop=True, status=None)
    assert report.outcome.status == "unknown"
    assert report.outcome.evidence == ("nobody can be asked: it has no status endpoint",)
    assert not report.http.cancel_sent
    assert service.requests == [("POST", "/orders")]


def test_a_stop_asks_the_service_to_cancel_and_then_what_became_of_it():
    async def main():
        async with Service() as service, httpx.AsyncClient() as client:
            service.lose = "waits"
            async with HttpUnit(
                client,
                "POST",
                service.url + "/orders",
                key="op_1",
                status=Endpoint("GET", service.url + "/status/{key}"),
                cancel=Endpoint("POST", service.url + "/cancel/{key}"),
                absent_after=0.0,
                stop=StopPolicy(grace=0.2, verify_wait=2.0),
            ) as unit:
                await service.received.wait()
                return await unit.stop(), service

    report, service = run(main)
    assert service.cancelled == ["op_1"]
    assert report.http.cancel_sent
    assert report.http.cancel_observed
    assert (report.outcome.status, report.outcome.effects) == ("stopped", "confirmed_absent")
    assert report.outcome.cause == "user"


def test_a_stop_does_not_hide_that_it_was_done():
    report, service = on_loopback("never_replies", stop=True)
    assert service.done["op_1"] == 1
    assert report.outcome.status == "succeeded"
    assert report.outcome.cause == "user"


def test_a_deadline_is_not_the_users_stop():
    report, service = on_loopback("never_replies", deadline=0.3)
    assert report.cause.kind == "deadline"
    assert report.outcome.status == "succeeded"
    assert service.done["op_1"] == 1


def test_a_stop_while_it_connects_is_not_started():
    """The connection never comes about, so that nothing can have been sent."""

    class NeverConnects(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            await request.extensions["trace"]("connection.connect_tcp.started", {})
            await asyncio.Event().wait()

    async def main(clock):
        async with (
            httpx.AsyncClient(transport=NeverConnects()) as client,
            HttpUnit(client, "POST", URL, clock=clock, stop=POLICY) as unit,
        ):
            await asyncio.sleep(1)
            report = await unit.stop()
            return report, clock.monotonic()

    report, now = run_virtual(main)
    assert report.outcome.status == "not_started"
    # Nothing was sent, so nothing was waited for.
    assert now == pytest.approx(1.0)
