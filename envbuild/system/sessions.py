"""Sessions of requests, for `envbuild.system.network`, which imports this module with the first client."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http.cookiejar import DefaultCookiePolicy

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, Retry

from envbuild.system import process


def open_session(
    *,
    attempts: int,
    pause_s: float,
    longest_pause_s: float,
    transient: Collection[int],
    certificates: str | bool,
    proxies: Mapping[str, str],
    netrc: bool,
) -> requests.Session:
    """Return a session that repeats a request whose answer has a `transient` status.

    The other parameters are those of `envbuild.system.network.RequestLimits` and `Client`; `certificates` is
    the result of `trusted_certificates`.
    """
    session = requests.Session() if netrc else _SessionWithoutNetrc()
    session.proxies.update(proxies)
    session.verify = certificates  # REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE still win over this
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # threads cannot share any
    retry = _Retry(
        total=attempts - 1,
        other=0,  # a certificate stays what it is
        backoff_factor=pause_s,
        backoff_max=longest_pause_s,
        status_forcelist=transient,
        allowed_methods=None,  # what is sent with POST can be repeated: a question, or the begin of an upload
        raise_on_status=False,
    )
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


class _Retry(Retry):
    """Retries that end with the run, and whose pauses are limited whatever a server's Retry-After says."""

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        asked_s = self.get_retry_after(response) if response is not None else None
        process.pause(min(asked_s or self.get_backoff_time(), self.backoff_max))


class _SessionWithoutNetrc(requests.Session):
    """A session that adds no password of a netrc to a redirected request."""

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Drop the password of a request that leads to another host."""
        if self.should_strip_auth(response.request.url, prepared_request.url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)
