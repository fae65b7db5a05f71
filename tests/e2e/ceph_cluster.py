"""A Ceph cluster on loopback for tests: one monitor, one manager, OSDs on plain files. Needs ceph-mon, ceph-osd,
ceph-mgr.

    with CephCluster(12) as ceph:
        ceph.ceph("osd", "tree");  ceph.config        # path of its ceph.conf
        ceph.osds[3].kill()
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def programs_are_there():
    return all(shutil.which(p) for p in ("ceph", "ceph-mon", "ceph-osd", "ceph-mgr", "monmaptool"))


class CephCluster:
    def __init__(self, osds):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="ceph-"))
        self.config = str(self.home / "ceph.conf")
        self.processes, self.osds = [], []
        try:
            self.begin(osds)
        except BaseException:
            self.__exit__()
            raise

    def begin(self, osds):
        fsid, port = str(uuid.uuid4()), free_port()
        pathlib.Path(self.config).write_text(f"""[global]
fsid = {fsid}
mon_host = v1:127.0.0.1:{port}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
run_dir = {self.home}
log_file = {self.home}/$name.log
admin_socket =
pid_file =
ms_bind_msgr2 = false
osd_crush_chooseleaf_type = 0
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_max_pg_per_osd = 1000
mon_data_avail_crit = 0
mon_osd_min_down_reporters = 1
mon_osd_min_up_ratio = 0
mon_osd_min_in_ratio = 0
mon_osd_down_out_interval = 0
osd_heartbeat_interval = 2
osd_heartbeat_grace = 30
mon_data = {self.home}/mon
mgr_data = {self.home}/mgr
mgr_initial_modules =
osd_data = {self.home}/osd$id
osd_objectstore = bluestore
bluestore_block_size = 536870912
bluestore_block_wal_create = false
bluestore_block_db_create = false
bluestore_fsck_quick_fix_on_mount = false
osd_memory_target = 939524096
osd_max_object_name_len = 256
""")
        (self.home / "mon").mkdir()
        (self.home / "mgr").mkdir()
        monmap = str(self.home / "monmap")
        self.run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{port}]", "--fsid", fsid, monmap)
        self.run("ceph-mon", "-c", self.config, "--mkfs", "-i", "a", "--monmap", monmap)
        self.start("ceph-mon", "-i", "a")
        self.ceph("-s")
        self.start("ceph-mgr", "-i", "x")
        for i in range(osds):
            (self.home / f"osd{i}").mkdir()
            osd_id = str(uuid.uuid4())
            self.ceph("osd", "new", osd_id)
            self.run("ceph-osd", "-c", self.config, "-i", str(i), "--mkfs", "--osd-uuid", osd_id)
            self.osds.append(self.start("ceph-osd", "-i", str(i)))
        self.wait_for(self.all_are_up)

    def all_are_up(self):
        # Without authentication an OSD may speak before it knows its cluster's id ("wrong fsid"), and ends by that.
        for i, osd in enumerate(self.osds):
            if osd.poll() is not None:
                self.osds[i] = self.start("ceph-osd", "-i", str(i))
        return f"{len(self.osds)} up" in self.ceph("osd", "stat")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def run(self, *words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr[-1000:]}")
        return done.stdout

    def ceph(self, *words):
        """What a command says. Some come again: see all_are_up, and a busy monitor lets others wait too long."""
        for _ in range(10):
            try:
                return self.run("ceph", "-c", self.config, "--connect-timeout", "60", *words)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                last = error
                time.sleep(2)
        raise last

    def start(self, program, *words):
        process = subprocess.Popen([program, "-f", "-c", self.config, *words], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env={**os.environ, "CEPH_ARGS": ""})
        self.processes.append(process)
        return process

    @staticmethod
    def wait_for(condition, seconds=300):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError("the Ceph cluster does not become ready")
            time.sleep(0.5)
