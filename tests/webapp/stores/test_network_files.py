"""Store files on network file systems, which other machines can open: refused before opening."""

from pathlib import Path

import pytest

from flows.errors import StoreUnavailable
from webapp.stores.sqlite_file import must_be_of_this_machine

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /srv/shared rw,relatime shared:9 - nfs4 files:/export rw,vers=4.2
31 22 0:41 / /srv/our\040share rw - cifs //files/ours rw
32 22 0:42 / /home/ann/remote rw - fuse.sshfs ann@files: rw,user_id=1000
33 22 0:43 / /srv/plan rw - 9p share rw,trans=virtio
34 22 0:44 / /srv/ceph rw - ceph mon:/ rw
35 22 0:45 / /srv/lustre rw - lustre mds@tcp:/lus rw
36 30 8:17 / /srv/shared/disk rw - xfs /dev/sdb1 rw
37 22 0:46 / /srv/over rw - nfs files:/over rw
38 22 0:47 / /srv/over rw - tmpfs tmpfs rw
39 22 0:48 / /mnt/bucket rw - fuse.s3fs s3fs rw
""".lstrip()


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/shared", "nfs4"),
        ("/srv/shared/deep/down", "nfs4"),
        ("/srv/our share", "cifs"),
        ("/home/ann/remote", "fuse.sshfs"),
        ("/srv/plan", "9p"),
        ("/srv/ceph", "ceph"),
        ("/srv/lustre", "lustre"),
        ("/mnt/bucket", "fuse.s3fs"),
    ],
)
def test_file_on_network_mount_is_refused_with_setting_to_change(mounts, folder, kind):
    with pytest.raises(StoreUnavailable) as refused:
        must_be_of_this_machine(Path(folder, "store.db"), mounts=mounts)
    assert f"({kind}, mounted at" in refused.value.why
    assert "ELICIT_STORE" in refused.value.why


@pytest.mark.parametrize(
    "folder", ["/", "/srv", "/srv/shared/disk", "/srv/sharedish", "/srv/over", "/home/ann"]
)
def test_file_on_local_disk_is_accepted(mounts, folder):
    must_be_of_this_machine(Path(folder, "store.db"), mounts=mounts)


def test_file_is_accepted_if_mount_table_is_missing(tmp_path):
    must_be_of_this_machine(tmp_path / "store.db", mounts=tmp_path / "no-such-table")
