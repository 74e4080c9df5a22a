"""What ordinary programs send: text that tells no attacker from a stranger's browser.

A baseline of seconds or minutes has not seen everybody's. Bots copy what browsers send, so that what is in
here separates nobody, whatever this machine has seen so far.
"""

from __future__ import annotations

import re

_PLATFORMS = (  # every number is 0 here, and in what is looked for
    "Windows NT 0.0", "Windows NT 0.0; Win0; x0", "Windows NT 0.0; WOW0", "Windows NT 0.0; Win0; x0; rv:0.0",
    "X0; Linux x0_0", "X0; Linux x0_0; rv:0.0", "X0; Ubuntu; Linux x0_0; rv:0.0", "X0; CrOS x0_0 0.0.0",
    "Macintosh; Intel Mac OS X 0_0_0", "Macintosh; Intel Mac OS X 0.0; rv:0.0", "Linux; Android 0; K",
    "Android 0; Mobile; rv:0.0",
    "iPhone; CPU iPhone OS 0_0_0 like Mac OS X", "iPhone; CPU iPhone OS 0_0 like Mac OS X",
    "iPad; CPU OS 0_0 like Mac OS X",
)  # fmt: skip
_WEBKIT = "AppleWebKit/0.0 (KHTML, like Gecko)"
_ENGINES = (
    f"{_WEBKIT} Chrome/0.0.0.0 Safari/0.0", f"{_WEBKIT} Chrome/0.0.0.0 Mobile Safari/0.0",
    f"{_WEBKIT} Chrome/0.0.0.0 Safari/0.0 Edg/0.0.0.0", f"{_WEBKIT} Version/0.0 Safari/0.0.0",
    "AppleWebKit/0.0.0 (KHTML, like Gecko) Version/0.0 Mobile/0E0 Safari/0.0",
    "Gecko/0 Firefox/0.0", "Gecko/0.0 Firefox/0.0",
)  # fmt: skip
_PAGES = "text/html,application/xhtml+xml,application/xml;q=0.0,"
_IMAGES = "image/avif,image/webp,image/apng,*/*;q=0.0"
_BEGUN = (  # what follows is of the site, or of the device
    "Host: ", "Origin: https://", "Referer: https://", "GET / HTTP/0.0", "SSH-0.0-OpenSSH_0.0p0 Ubuntu-0",
    *(f"User-Agent: Mozilla/0.0 (Linux; Android 0; {device}" for device in ("SM-", "Pixel 0")),
)  # fmt: skip
_LINES = (
    "", "Host: ",
    "Connection: keep-alive", "Connection: close", "DNT: 0", "Cache-Control: max-age=0", "Pragma: no-cache",
    "Cache-Control: no-cache", "Upgrade-Insecure-Requests: 0", "Accept: */*", f"Accept: {_PAGES}*/*;q=0.0",
    f"Accept: {_PAGES}{_IMAGES}", f"Accept: {_PAGES}{_IMAGES},application/signed-exchange;v=b0;q=0.0",
    "Accept-Encoding: gzip, deflate, br, zstd", "Accept-Encoding: gzip, deflate", "Sec-Fetch-Dest: document",
    "Accept-Language: en-US,en;q=0.0", "Content-Type: application/x-www-form-urlencoded", "Content-Length: 0",
    "Sec-Fetch-Mode: navigate", "Sec-Fetch-Site: none", "Sec-Fetch-Site: same-origin", "Sec-Fetch-User: ?0",
    "SSH-0.0-OpenSSH_0.0p0 Debian-0+deb0u0",
    *(f"User-Agent: Mozilla/0.0 ({platform}) {engine}" for platform in _PLATFORMS for engine in _ENGINES),
)  # fmt: skip
_NUMBERS = re.compile(rb"\d+")  # versions change each month, and the same is sent with any
_HOST = re.compile(rb"(?<=\r\nHost: )[^\r\n]+", re.IGNORECASE)
_END = b"\r\n"
# Each as it stands between the ends of its neighbours
_TEXTS = [*(b"\n" + text.encode() for text in _BEGUN), *(b"\n%b\r" % text.encode() for text in _LINES)]
_FROM_REQUEST = b" HTTP/0.0\r"


def is_everyday(data: bytes, whole: bytes = b"") -> bool:
    """Whether ordinary browsers and programs send each of these lines, with any version's numbers in them.

    `whole` is the text around them: the host in it is the site's own name, which all its visitors send.
    """
    if (host := _HOST.search(whole)) and (first := whole.find(data)) >= 0:
        begin, end = (min(max(at - first, 0), len(data)) for at in host.span())
        data = data[:begin] + data[end:]
    parts = _NUMBERS.sub(b"0", data).split(_END)
    last = len(parts) - 1
    lines = (b"\n" * (at > 0) + part + b"\r" * (at < last) for at, part in enumerate(parts))
    return all(line in _FROM_REQUEST or any(line in text for text in _TEXTS) for line in lines)
