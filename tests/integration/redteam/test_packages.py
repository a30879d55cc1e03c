"""A Debian package whose script looks for the machine: it is root of a user namespace, and has no network."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from envbuild.build.debian import make_root
from envbuild.store.records import read_record
from tests.integration.conftest import Desk, layers
from tests.support.mirrors import digest, write_deb

SCRIPT = """\
#!/usr/bin/perl
use IO::Socket::INET;
open(my $found, ">", "/etc/found");
open(my $map, "<", "/proc/self/uid_map");
print $found "map ", join(" ", split(" ", <$map>)), "\\n";
open(my $net, "<", "/proc/net/dev");
while (<$net>) { print $found "interface $1\\n" if /(\\S+):/; }
print $found "connected\\n" if IO::Socket::INET->new(PeerAddr => "127.0.0.1:@PORT@", Timeout => 3);
for my $path (glob("/proc/[0-9]*/root@SECRET@")) {
    print $found "read $path\\n" if open(my $file, "<", $path);
}
for my $path (glob("/proc/[0-9]*/root@PLACE@")) {
    print $found "wrote $path\\n" if open(my $file, ">", "$path/x");
}
"""


@pytest.mark.redteam
@pytest.mark.slow  # `make redteam` has it
def test_a_script_of_a_package_reaches_nothing_of_the_machine(
    desk: Desk, debian_12: Path, tmp_path: Path
) -> None:
    key = layers(desk, "plain.yaml")["base"]["key"]
    value = key.removeprefix("sha256:")
    record = read_record(desk.store / f"layers/{value[:2]}/{value}.json")
    secret = tmp_path / "secret"
    secret.write_text("mine")
    secret.chmod(0o600)
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = SCRIPT.replace("@PORT@", str(server.getsockname()[1]))
        script = script.replace("@SECRET@", str(secret)).replace("@PLACE@", str(place))
        write_deb(tmp_path, "hostile", postinst=script)
        (deb,) = tmp_path.rglob("*.deb")
        make_root(
            {deb: digest(deb)},
            suite="bookworm",
            architecture="amd64",
            texts={},
            tree=tmp_path / "root",
            log=tmp_path / "log",
            base=(debian_12, record.tree),
        )
    found = (tmp_path / "root/etc/found").read_text().splitlines()
    assert found[0].split()[:2] == ["map", "0"]
    assert found[0].split()[2] != "0", "it is root of the machine"
    assert found[1:] == ["interface lo"]
    assert list(place.iterdir()) == []
