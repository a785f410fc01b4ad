"""What is taken out of text, what stays, and that twice is as once."""

from __future__ import annotations

import ipaddress
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.probe.redact import RedactionError, Redactor

ALL = {"scrub_env_keys": ["*TOKEN*", "aws_*"], "scrub_paths": True, "scrub_ip_addresses": True}


def redacted(text: str, **block: Any) -> str:
    """The text without what a block asks for."""
    return Redactor.from_mapping(block or ALL).redact(text)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HF_TOKEN=hf_abc123", "HF_TOKEN=<redacted>"),
        ("export hf_token=two words here", "export hf_token=<redacted>"),
        ('{"HF_TOKEN": "hf_\\"abc", "STEPS": "3"}', '{"HF_TOKEN": "<redacted>", "STEPS": "3"}'),
        ('{"env": "{\\"HF_TOKEN\\": \\"hf_abc\\"}"}', '{"env": "{\\"HF_TOKEN\\": \\"<redacted>\\"}"}'),
        ('{"env": "{\\"A_TOKEN\\": \\"a\\\\\\"b\\"}"}', '{"env": "{\\"A_TOKEN\\": \\"<redacted>\\"}"}'),
        ('x A_TOKEN="never ends', 'x A_TOKEN="<redacted>"'),
        ("AWS_SECRET: 'x y'", "AWS_SECRET: '<redacted>'"),
        ("run: MY_TOKEN=abc STEPS=3", "run: MY_TOKEN=<redacted> STEPS=3"),
        ("auth_token: Bearer abc.def", "auth_token: <redacted>"),
        ("STEPS=3 PATHS=x", "STEPS=3 PATHS=x"),
        ('"tokens": [1, 2]', '"tokens": [1, 2]'),
    ],
)
def test_values_of_secret_variables_go(text: str, expected: str) -> None:
    """In shell, JSON and YAML form; names are globs without regard to case, and quotes stay."""
    assert redacted(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "/home/ann/secret/train.py", line 3', 'File "<path>/train.py", line 3'),
        ("cd /home/ann; /home/ann/py/3.11.7", "cd <path>; <path>"),
        ("cd /root && ls /root/x", "cd <path> && ls <path>"),
        ("PYTHONPATH=/scratch/p1/src:/opt/rocm/lib:/data/x/", "PYTHONPATH=<path>:/opt/rocm/lib:<path>"),
        ("~/work/run.sh and ~ann/y", "<path>/run.sh and <path>"),
        ("file:///home/ann/a/b.txt", "file://<path>/b.txt"),
    ],
)
def test_paths_go(text: str, expected: str) -> None:
    """People's and projects' folders go; a file's own name, the system's paths and URLs stay."""
    assert redacted(text, scrub_paths=True) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("peer 10.0.0.7<4791>, 192.168.1.2:29500.", "peer <ip><4791>, <ip>:29500."),
        ("at 10.0.0.1.", "at <ip>."),
        ("fe80::1ff:fe23:4567:890a%eth0 and [2001:db8::1]:80", "<ip> and [<ip>]:80"),
        ("::ffff:10.1.2.3", "<ip>"),
        ("gid fe80:0000:0000:0000:0202:b3ff:fe1e:8329", "gid <ip>"),
        ("version 1.2.3.4", "version <ip>"),
    ],
)
def test_addresses_go(text: str, expected: str) -> None:
    """Both families; four numbers alone count as an address, with a letter or a dot before them as a version."""
    assert redacted(text, scrub_ip_addresses=True) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/a/b 3/4 and/or a/b/c /usr/lib/x.so",
        "v1.2.3.4 librccl.so.1.2.3.4 1.2.3.4.5 1.2.3 999.1.1.1",
        "127.0.0.1 ::1 0.0.0.0 std::vector c10::Error",
        "12:00:01 aa:bb:cc:dd:ee:ff 0000:c1:00.0",
        "step 12 loss 2.5 tokens/s 1200",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    """URLs, system paths, versions, loopback addresses, times and device addresses."""
    assert redacted(text) == text


@pytest.mark.parametrize("filler", ["\\", "a.", "-", "/a", "::", "A_TOKEN", '\\"', "1.", "~/", "= "])
def test_no_text_is_slow(filler: str) -> None:
    """Long lines take time in proportion, whatever they hold."""
    started = time.process_time()
    redacted('x A_TOKEN=\\"' + filler * 20_000)
    assert time.process_time() - started < 5


def test_counts_are_by_kind() -> None:
    """What was taken out is counted, what was not is not."""
    _, counts = Redactor.from_mapping(ALL).redact("x A_TOKEN=abc 10.0.0.1 10.0.0.2 /home/a/b STEPS=2")
    assert counts == {"env": 1, "path": 1, "ip": 2}


def test_a_learned_value_goes_everywhere() -> None:
    """Once a secret's value is known, it is taken out where no name stands beside it; short ones are not learned."""
    redactor = Redactor.from_mapping(ALL)
    redactor.learn("HF_TOKEN=hf_abcdef99\nX_TOKEN=1\n")
    assert redactor.redact("curl -H hf_abcdef99 1")[0] == "curl -H <redacted> 1"


def test_without_a_block_the_usual_secrets_go() -> None:
    """No block is no permission to hand out passwords."""
    redactor = Redactor.from_mapping(None)
    assert redactor.redact("x DB_PASSWORD=abc 10.0.0.1")[0] == "x DB_PASSWORD=<redacted> 10.0.0.1"
    assert not Redactor.from_mapping({}).is_active


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ([], "must be a mapping"),
        ({"scrub_env": []}, "redaction.scrub_env: is not known"),
        ({"scrub_env_keys": "X"}, "scrub_env_keys: must be a list"),
        ({"scrub_paths": "yes"}, "scrub_paths: must be true or false"),
    ],
)
def test_a_wrong_block_is_refused(block: Any, message: str) -> None:
    """By its place."""
    with pytest.raises(RedactionError, match=message):
        Redactor.from_mapping(block)


PIECES = st.one_of(
    st.text(max_size=12),
    st.ip_addresses().map(str),
    st.sampled_from(["HF_TOKEN=", "/home/ann/", "x.py", '"A_TOKEN": "', "~/", " ", "\n", ":", "/", "=", "'"]),
    st.sampled_from(["<path>", "<ip>", "<redacted>"]),
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_twice_is_as_once(text: str) -> None:
    """Nothing is taken out of what was redacted already."""
    redactor = Redactor.from_mapping(ALL)
    once, _ = redactor.redact(text)
    assert redactor.redact(once)[0] == once


@given(st.ip_addresses().filter(lambda address: not (address.is_loopback or address.is_unspecified)))
def test_no_address_stays(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Whatever the address, alone or among words."""
    if str(address) != "255.255.255.255":
        assert redacted(f"peer {address}, port 1", scrub_ip_addresses=True) == "peer <ip>, port 1"


@given(st.dictionaries(st.from_regex(r"[A-Z]{1,5}_TOKEN", fullmatch=True), st.text(min_size=1), max_size=4))
def test_json_stays_json(env: dict[str, str]) -> None:
    """A redacted record can be read, and no value is left."""
    text = redacted(json.dumps({"env": env}, ensure_ascii=False), scrub_env_keys=["*TOKEN*"])
    assert json.loads(text) == {"env": dict.fromkeys(env, "<redacted>")}
