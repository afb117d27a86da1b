"""Drives the node by docker-py, and asserts what it returns. DOCKER_HOST names the socket."""

import io
import tarfile

import docker

client = docker.from_env(version="auto", timeout=20)


def same(got, want):
    """Asserts that two values are equal."""
    assert got == want, f"{got!r}, want {want!r}"


def archive(name, content):
    """Returns a tar archive of one file."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return body.getvalue()


def images():
    """Pulls the image that all other parts use."""
    layers = [d for d in client.api.pull("busybox", tag="latest", stream=True, decode=True)]
    assert any("Downloaded newer image" in d.get("status", "") for d in layers), layers
    image = client.images.get("busybox")
    same(image.tags, ["busybox:latest"])
    image.tag("copy", tag="1")
    same(sorted(client.images.get(image.id).tags), ["busybox:latest", "copy:1"])
    client.images.remove("copy:1")
    saved = b"".join(image.save(named=True))
    same([i.id for i in client.images.load(saved)], [image.id])
    try:
        client.images.get("none")
    except docker.errors.ImageNotFound:
        return
    raise AssertionError("an image that does not exist is found")


def runs():
    """Runs containers to their ends."""
    same(client.containers.run("busybox", "echo py", remove=True), b"py\n")
    try:
        client.containers.run("busybox", ["sh", "-c", "echo bad >&2; exit 3"], remove=True)
    except docker.errors.ContainerError as err:
        same((err.exit_status, err.stderr), (3, b"bad\n"))
    else:
        raise AssertionError("a failed run raises nothing")


def streams(box):
    """Reads logs, and talks to processes."""
    lines = box.logs(stream=True, follow=True)
    same(next(lines), b"out\n")
    same(box.logs(stdout=False), b"err\n")
    same(box.attach(stdout=True, stderr=False, logs=True, stream=False), b"out\n")
    same(tuple(box.exec_run(["sh", "-c", "echo hi; exit 4"])), (4, b"hi\n"))
    same(box.exec_run(["sh", "-c", "echo o; echo e >&2"], demux=True).output, (b"o\n", b"e\n"))
    made = client.api.exec_create(box.id, "cat", stdin=True)
    sock = client.api.exec_start(made, socket=True)
    # Version 5 of the library gives the socket in a reader; a frame of 5 bytes has a header of 8.
    raw = getattr(sock, "_sock", sock)
    raw.sendall(b"ping\n")
    got = b""
    while len(got) < 13:
        piece = raw.recv(100)
        assert piece, got
        got += piece
    same(got, b"\x01\0\0\0\0\0\0\x05ping\n")
    same(client.api.exec_inspect(made)["Running"], True)
    sock.close()
    raw.close()


def files(box):
    """Copies a file in and out."""
    same(box.put_archive("/tmp", archive("f", b"abc")), True)
    pieces, info = box.get_archive("/tmp/f")
    same((info["name"], info["size"]), ("f", 3))
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        same(tar.extractfile("f").read(), b"abc")
    assert {"Path": "/tmp/f", "Kind": 1} in box.diff(), box.diff()
    try:
        box.get_archive("/none")
    except docker.errors.NotFound:
        return
    raise AssertionError("a file that does not exist is found")


def facts(box):
    """Reads what the node knows of a container."""
    box.reload()
    same(box.status, "running")
    assert box.attrs["NetworkSettings"]["IPAddress"], box.attrs["NetworkSettings"]
    same({p["HostIp"] for p in box.ports["80/tcp"]}, {"0.0.0.0", "::"})
    assert box.stats(stream=False)["memory_stats"]["usage"] > 0
    assert any("sleep 1000" in " ".join(p) for p in box.top()["Processes"]), box.top()
    same([c.name for c in client.containers.list(filters={"label": "of=py"})], [box.name])
    assert set(client.df()) >= {"Images", "Containers", "Volumes"}, client.df()


def states(box):
    """Takes the container through its states."""
    box.rename("py2")
    box.pause()
    box.reload()
    same((box.name, box.status), ("py2", "paused"))
    box.unpause()
    box.update(mem_limit="50m", memswap_limit="100m")
    box.reload()
    same(box.attrs["HostConfig"]["Memory"], 50 << 20)
    image = box.commit("committed", tag="1", changes=["ENV X=y"])
    same(client.containers.run(image, ["sh", "-c", "cat /tmp/f; echo $X"], remove=True), b"abcy\n")
    client.images.remove(image.id)
    box.kill()
    same(box.wait()["StatusCode"], 137)
    try:
        box.kill()
    except docker.errors.APIError as err:
        same(err.status_code, 409)
    else:
        raise AssertionError("a stopped container is killed")


def networks(box):
    """Gives the container an address on a network of its own."""
    pool = docker.types.IPAMPool(subnet="10.77.0.0/24")
    net = client.networks.create("pynet", driver="bridge", ipam=docker.types.IPAMConfig(pool_configs=[pool]))
    net.connect(box, aliases=["other"], ipv4_address="10.77.0.9")
    box.start()
    box.reload()
    same(box.attrs["NetworkSettings"]["Networks"]["pynet"]["IPAddress"], "10.77.0.9")
    out = client.containers.run("busybox", "ping -c 1 other", network="pynet", remove=True)
    assert b"10.77.0.9" in out, out
    net.disconnect(box)
    box.remove(force=True)
    net.remove()


def main():
    """Calls all parts in turn."""
    since = client.info()["SystemTime"]
    images()
    runs()
    volume = client.volumes.create("pyvol", labels={"of": "py"})
    same([v.name for v in client.volumes.list(filters={"label": "of=py"})], ["pyvol"])
    box = client.containers.run(
        "busybox",
        ["sh", "-c", "echo out; echo err >&2; sleep 1000"],
        detach=True,
        name="py1",
        ports={"80/tcp": None},
        labels={"of": "py"},
        volumes={"pyvol": {"bind": "/v", "mode": "rw"}},
    )
    streams(box)
    files(box)
    facts(box)
    states(box)
    networks(box)
    volume.remove()
    # The library removes a container without its anonymous volumes: that of the committed image is left.
    same(len(client.volumes.prune()["VolumesDeleted"]), 1)
    until = client.info()["SystemTime"]
    actions = [e["Action"] for e in client.events(since=since, until=until, decode=True, filters={"container": box.id})]
    rest = iter(actions)
    for want in ["create", "start", "pause", "unpause", "kill", "die", "start", "destroy"]:
        assert want in rest, f"no {want} in its place in {actions}"


main()
