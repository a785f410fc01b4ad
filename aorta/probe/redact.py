"""Takes out of text what a customer does not hand out: values of secret variables, paths, and IP addresses.

Redacting twice gives what redacting once gives. When in doubt, something is taken out: ``1.2.3.4`` may be an address or
a version, and is redacted; ``v1.2.3.4`` and ``lib.so.1.2.3.4`` are versions, and are not. Loopback and unspecified
addresses (``127.0.0.1``, ``::1``, ``0.0.0.0``, ``::``) name nobody, and stay.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

VALUE, PATH, ADDRESS = "<redacted>", "<path>", "<ip>"

KINDS: tuple[str, ...] = ("env", "path", "ip")

SECRET_KEYS: tuple[str, ...] = (
    *("*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*API_KEY*", "*APIKEY*", "*ACCESS_KEY*", "*CREDENTIAL*"),
    *("*PRIVATE_KEY*", "AUTHORIZATION"),
)
"""Names whose values are taken out when a recipe has no ``redaction:`` block."""

LEAST_SECRET = 8
"""Characters of a value that is taken out wherever it stands; shorter ones (``1``, ``true``) stand for other things."""

_ROUNDS = 16

_KEYS = ("scrub_env_keys", "scrub_paths", "scrub_ip_addresses")

# KEY=value, KEY: value, "KEY": "value"; of a line that begins with KEY= (as env prints it) everything is the value.
_ASSIGNMENT = (
    r"(?P<head>(?<![A-Za-z0-9_])(?P<key>{keys})(?:\\?[\"'])?[ \t]{{0,8}}[:=][ \t]{{0,8}})"
    # A value in quotes, in quotes that are escaped themselves, and one whose quotes do not end: all to the line's end.
    # Each way to go on begins differently, so that no text takes more than one look.
    r"(?P<value>\\\"(?:[^\"\\\n]|\\{{4}}|\\{{3}}\"|\\{{1,2}}[^\"\\\n])*\\\"|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'"
    r"|\\?[\"'][^\n]*"
    r"|(?:(?:Bearer|Basic|Token)[ \t]+)?(?![\[{{])[^\s,;}}\]\"'\\]+)"
)
_WHOLE_LINE = r"(?m:^)(?P<head>(?:export[ \t]+)?(?P<key>{keys})=)(?P<value>[^\r\n]+)"
_SYSTEM = r"(?:usr|opt|lib|lib64|bin|sbin|etc|dev|proc|sys|run|boot)"
_PART = r"[\w.+@%~=-]+"
_PATHS = re.compile(
    rf"(?:(?<![\w.~/<>-])|(?<=file://))(?:/(?!{_SYSTEM}/|path>){_PART}(?:/{_PART})+/?|/root\b(?:/{_PART})*/?)"
    rf"|(?<![\w.~/-])~[\w-]*(?:/{_PART})+/?"
)
_FILE = re.compile(r"[\w+@%=-][\w.+@%~=-]*\.[A-Za-z][A-Za-z0-9]{0,7}")
_IPV4 = re.compile(r"(?<![A-Za-z0-9_.])(?:\d{1,3}\.){3}\d{1,3}(?![A-Za-z0-9_]|\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?=[0-9A-Fa-f]*:)[0-9A-Fa-f:]{2,39}(?:(?<=:)(?:\d{1,3}\.){3}\d{1,3})?(?:%\w+)?(?![\w:]|\.\d)"
)
_HARMLESS = ("127.0.0.1", "0.0.0.0", "255.255.255.255", "::1", "::")


class RedactionError(ValueError):
    """A ``redaction:`` block that is not one; the message names the place and what would be right."""


class Redactor:
    """Takes out what a recipe's ``redaction:`` block asks for.

    Args:
        env_keys: Names of variables, as globs without regard to case.
        paths: Whether paths are taken out, but for those of the system (``/usr``, ``/opt``, ``/etc``, ``/dev``, ...).
        addresses: Whether IPv4 and IPv6 addresses are.
    """

    def __init__(self, env_keys: tuple[str, ...] = (), paths: bool = False, addresses: bool = False) -> None:
        self.env_keys, self.paths, self.addresses = env_keys, paths, addresses
        keys = "|".join(map(_key_pattern, env_keys)) or "(?!)"
        self._secret = re.compile(keys, re.IGNORECASE)
        self._assignments = [re.compile(form.format(keys=keys), re.IGNORECASE) for form in (_WHOLE_LINE, _ASSIGNMENT)]
        self._learned: set[str] = set()
        self._known: re.Pattern[str] | None = None

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any] | None, source: str = "redaction") -> Redactor:
        """Builds one from a recipe's block; of no block at all, one for ``SECRET_KEYS``.

        Args:
            data: ``scrub_env_keys`` (list of globs), ``scrub_paths`` and ``scrub_ip_addresses`` (true or false).
            source: Names the block in errors.

        Raises:
            RedactionError: The block is not of that form.
        """
        if data is None:
            return cls(SECRET_KEYS)
        if not isinstance(data, dict):
            raise RedactionError(f"{source}: must be a mapping with the optional keys {', '.join(_KEYS)}")
        for key in data:
            if key not in _KEYS:
                raise RedactionError(f"{source}.{key}: is not known; there are: {', '.join(_KEYS)}")
        keys = data.get("scrub_env_keys") or []
        if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
            raise RedactionError(f"{source}.scrub_env_keys: must be a list of names such as '*TOKEN*'")
        flags = [data.get(key) for key in _KEYS[1:]]
        for key, flag in zip(_KEYS[1:], flags, strict=True):
            if flag is not None and not isinstance(flag, bool):
                raise RedactionError(f"{source}.{key}: must be true or false, not {flag!r}")
        return cls(tuple(keys), *map(bool, flags))

    def to_json(self) -> dict[str, Any]:
        """Returns the block that this was built from."""
        return {
            "scrub_env_keys": list(self.env_keys),
            "scrub_paths": self.paths,
            "scrub_ip_addresses": self.addresses,
        }

    @property
    def is_active(self) -> bool:
        """Whether anything is taken out at all."""
        return bool(self.env_keys) or self.paths or self.addresses

    def is_secret(self, key: str) -> bool:
        """Tells whether the value of a variable is taken out."""
        return self._secret.fullmatch(key) is not None

    def learn(self, text: str) -> None:
        """Notes the values of secret variables, which are then taken out wherever they stand."""
        for pattern in self._assignments:
            for match in pattern.finditer(text):
                value = match["value"].strip("\\\"'")
                if len(value) >= LEAST_SECRET and value != VALUE:
                    self._learned.add(value)
        self._known = None

    def redact(self, text: str) -> tuple[str, dict[str, int]]:
        """Takes out what is to be taken out.

        Args:
            text: A line, or more; a value does not go on over the end of a line.

        Returns:
            The text, and how much of each of ``KINDS`` was taken out.
        """
        counts = dict.fromkeys(KINDS, 0)
        # What one placeholder leaves beside it may read as something else, such as a path that now begins a word.
        for _ in range(_ROUNDS):
            new = self._once(text, counts)
            if new == text:
                break
            text = new
        return text, counts

    def _once(self, text: str, counts: dict[str, int]) -> str:
        def replacing(kind: str, replace: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
            def replaced(match: re.Match[str]) -> str:
                new = replace(match)
                counts[kind] += new != match[0]
                return new

            return replaced

        if self._learned:
            if self._known is None:
                longest_first = sorted(self._learned, key=len, reverse=True)
                self._known = re.compile("|".join(map(re.escape, longest_first)))
            text = self._known.sub(replacing("env", lambda match: VALUE), text)
        for pattern in self._assignments:
            text = pattern.sub(replacing("env", _assigned), text)
        if self.paths:
            text = _PATHS.sub(replacing("path", _path), text)
        if self.addresses:
            text = _IPV6.sub(replacing("ip", _address), text)
            text = _IPV4.sub(replacing("ip", _address), text)
        return text


def _key_pattern(glob: str) -> str:
    """Returns a glob as a pattern for names; its stars do not run over what is no part of a name."""
    letters = {"*": "[A-Za-z0-9_.-]{0,64}", "?": "[A-Za-z0-9_.-]"}
    return "".join(letters.get(letter) or re.escape(letter) for letter in glob)


def _assigned(match: re.Match[str]) -> str:
    value = match["value"]
    quote = '\\"' if value.startswith('\\"') else value[0] if value[0] in "\"'" else ""
    return f"{match['head']}{quote}{VALUE}{quote}"


def _path(match: re.Match[str]) -> str:
    """Keeps the name of a file, which tells what a message is about, but no folder's, which may be a person's."""
    parts = match[0].rstrip("/").split("/")
    keeps = len(parts) > (2 if parts[0] else 3) and _FILE.fullmatch(parts[-1]) is not None
    return f"{PATH}/{parts[-1]}" if keeps else PATH


def _address(match: re.Match[str]) -> str:
    import ipaddress

    if match[0] in _HARMLESS:
        return match[0]
    try:
        ipaddress.ip_address(match[0])
    except ValueError:
        # Leading zeros are no address to the library, and one to a reader.
        octets = match[0].split(".")
        if len(octets) != 4 or not all(octet.isdigit() and int(octet) < 256 for octet in octets):
            return match[0]
    return ADDRESS
