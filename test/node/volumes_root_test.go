package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// volumes is a node with an image, for tests of volumes.
type volumes struct {
	*nodetest.Node
	image string
}

func startVolumes(t *testing.T) volumes {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{})
	return volumes{n, n.Busybox(t)}
}

// must runs a command of ours.
func (v volumes) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := v.CLI(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// keep runs a lasting container.
func (v volumes) keep(t *testing.T, name, volume string) {
	t.Helper()
	v.must(t, "run", "-d", "--name", name, "-v", volume+":/data", v.image, "/bin/sleep", "1000")
}

// sees runs a command in a running container.
func (v volumes) sees(t *testing.T, name, command, want string) {
	t.Helper()
	if out, err := v.CLI("exec", name, "/bin/sh", "-c", command); err != nil || strings.TrimSpace(out) != want {
		t.Errorf("%s: %s: %q, %v", name, command, out, err)
	}
}

// mounts are the volumes that are mounted on the node.
func (v volumes) mounts(t *testing.T) string {
	t.Helper()
	var list []string
	for _, line := range nodetest.Lines(t, "cat", "/proc/self/mountinfo") {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, filepath.Join(v.State, "volumes")+"/") {
			list = append(list, strings.TrimPrefix(point, v.State+"/volumes/"))
		}
	}
	return strings.Join(list, " ")
}

// TestVolumesWithOptions: a tmpfs and a directory of the node as volumes, through the ends of
// agent and keeper, from the first container to the last.
func TestVolumesWithOptions(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "theirs"), []byte("kept"), 0o644); err != nil {
			t.Fatal(err)
		}
		v.must(t, "volume", "create", "mem", "--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=size=1m,uid=7,noexec")
		v.must(t, "volume", "create", "dir", "-o", "type=none", "-o", "device="+dir, "-o", "o=bind")
		if got := v.mounts(t); got != "" {
			t.Errorf("before the first container: %s", got)
		}
		v.keep(t, "a", "mem")
		v.keep(t, "b", "dir")
		v.sees(t, "a", "stat -f -c %T /data; stat -c %u /data; grep -c ' /data .*noexec.*size=1024k' /proc/self/mountinfo", "tmpfs\n7\n1")
		v.sees(t, "a", "echo one > /data/f; cat /data/f", "one")
		v.sees(t, "b", "cat /data/theirs; echo two > /data/ours", "kept")
		v.Kill()
		v.Up()
		v.keep(t, "c", "mem")
		v.sees(t, "c", "cat /data/f", "one")
		for _, pid := range nodetest.Pair("keeper") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		nodetest.Eventually(t, "a keeper is back", func() bool {
			_, err := v.CLI("exec", "c", "/bin/true")
			return err == nil
		})
		v.keep(t, "d", "mem")
		v.sees(t, "d", "cat /data/f", "one")
		if got := v.mounts(t); got != "cli/mem cli/dir" {
			t.Errorf("mounted: %s", got)
		}
		clean(t, v.Node)
		if out, err := v.CLI("volume", "rm", "mem"); err == nil {
			t.Errorf("a volume in use was removed: %s", out)
		}
		v.must(t, "rm", "-f", "a", "c")
		v.sees(t, "d", "cat /data/f", "one")
		v.must(t, "rm", "-f", "d", "b")
		if got := v.mounts(t); got != "" {
			t.Errorf("after the last container: %s", got)
		}
		v.must(t, "volume", "rm", "mem", "dir")
		for name, want := range map[string]string{"theirs": "kept", "ours": "two\n"} {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
				t.Errorf("%s of the node's directory: %q, %v", name, b, err)
			}
		}
		clean(t, v.Node)
	})
}

// TestVolumesThatAnAgentLeft: a mount that no record names, as an agent leaves it that is killed
// between, is gone after the next start.
func TestVolumesThatAnAgentLeft(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		v.must(t, "volume", "create", "mem", "--opt", "type=tmpfs", "--opt", "device=tmpfs")
		v.keep(t, "a", "mem")
		v.Kill()
		left := filepath.Join(v.State, "volumes/cli/left")
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", left, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		v.Up()
		if got := v.mounts(t); got != "cli/mem" {
			t.Errorf("mounted: %s", got)
		}
		clean(t, v.Node)
		v.must(t, "rm", "-f", "a")
	})
}

// TestAPathInAVolume: below it, and never through a link that a container has made.
func TestAPathInAVolume(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		v.keep(t, "a", "data")
		v.sees(t, "a", "mkdir -p /data/in/side /data/real; echo x > /data/in/side/f; ln -s /etc /data/out; ln -s real /data/link; ln -s ../../../../.. /data/in/up", "")
		v.keep(t, "b", "data/in/side")
		v.sees(t, "b", "cat /data/f; ls /data", "x\nf")
		v.keep(t, "c", "data/in/side/f")
		v.sees(t, "c", "cat /data", "x")
		for _, path := range []string{"out", "out/passwd", "link", "in/up", "missing"} {
			if out, err := v.CLI("run", "--rm", "-v", "data/"+path+":/x", v.image, "/bin/true"); err == nil {
				t.Errorf("%s was mounted: %s", path, out)
			}
		}
		if out, err := v.CLI("run", "--rm", "-v", "data/../x:/x", v.image, "/bin/true"); err == nil || !strings.Contains(err.Error(), "leads out") {
			t.Errorf("%s, %v", out, err)
		}
		v.must(t, "rm", "-f", "a", "b", "c")
		clean(t, v.Node)
	})
}

// TestVolumesOfServers: without the filesystem in the kernel, or without a server, the answer says
// which; and a password is in no file but the volume's record, and in no answer.
func TestVolumesOfServers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		const planted = "planted-hunter2"
		known := strings.Join(nodetest.Lines(t, "cat", "/proc/filesystems"), "\n")
		for typ, device := range map[string]string{"nfs": ":/export", "cifs": "//127.0.0.1/share"} {
			v.must(t, "volume", "create", typ, "-o", "type="+typ, "-o", "device="+device, "-o", "o=addr=127.0.0.1,password="+planted)
			_, err := v.CLI("run", "--rm", "-v", typ+":/data", v.image, "/bin/true")
			if err == nil {
				t.Fatalf("%s without a server was mounted", typ)
			}
			if !strings.Contains(known, "\t"+typ+"\n") && !strings.Contains(err.Error(), "not known to this kernel") || strings.Contains(err.Error(), planted) {
				t.Errorf("%s: %v", typ, err)
			}
		}
		if _, err := v.CLI("run", "--rm", "-v", "nfs:/data", v.image, "/bin/true"); err == nil {
			t.Error("nfs without a server was mounted")
		}
		for _, args := range [][]string{{"volume", "ls", "--json"}, {"events", "--since", "0", "--json", "--no-follow"}, {"ps", "-a", "--json"}, {"config"}} {
			if out, err := v.CLI(args...); err == nil && strings.Contains(out, planted) {
				t.Errorf("%v shows a password", args)
			}
		}
		if _, err := v.CLI("volume", "create", "bad", "-o", "type=cifs", "-o", "device=x", "-o", "o=password="+planted); err == nil || strings.Count(err.Error(), planted) > 1 { // once in the command
			t.Errorf("%v", err)
		}
		holders(t, v, planted)
		clean(t, v.Node)
	})
}

// holders looks for a text in every file of a node: only records of volumes may have it.
func holders(t *testing.T, v volumes, text string) {
	t.Helper()
	records := 0
	err := filepath.WalkDir(v.Dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what is gone meanwhile has nothing
		}
		content, _ := os.ReadFile(name)
		switch {
		case !strings.Contains(string(content), text):
		case filepath.Base(name) == "volume.json" || filepath.Base(name) == "volume.json.copy":
			if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
			records++
		default:
			t.Errorf("%s has a password", name)
		}
		return nil
	})
	if err != nil || records != 4 { // each has a copy
		t.Errorf("%d records, %v", records, err)
	}
}

// TestVolumesGetWhatTheImageHas: a named volume and those that the image declares begin with the
// image's content, owner and mode, so that a user other than root can write to them, and those
// without a name go with the container.
func TestVolumesGetWhatTheImageHas(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		files = append(files,
			imagetest.File{Name: "var/lib/cache/", Mode: 0o750, UID: 999, GID: 998},
			imagetest.File{Name: "var/lib/cache/conf", Body: []byte("from the image"), Mode: 0o640, UID: 999, GID: 998},
			imagetest.File{Name: "srv", Link: "/var/lib"},
			imagetest.File{Name: "etc/passwd", Body: []byte("root:x:0:0::/:/bin/sh\ncache:x:999:998::/:/bin/sh\n"), Mode: 0o644})
		ref := imagetest.NewRegistry(t).Push("cache", "latest", imagetest.Image{
			Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}, Volumes: map[string]struct{}{"/var/lib/cache": {}}},
		}.Build())
		v := volumes{n, ref}
		const look = "stat -c %u:%g:%a /var/lib/cache; cat /var/lib/cache/conf; echo more >> /var/lib/cache/conf; wc -l < /var/lib/cache/conf"
		const fresh = "999:998:750\nfrom the image1\n"
		run := func(more ...string) string {
			t.Helper()
			return v.must(t, slices.Concat([]string{"run", "--rm", "-u", "cache"}, more, []string{ref, "/bin/sh", "-c", look})...)
		}
		if got := run("-v", "named:/var/lib/cache"); got != fresh {
			t.Errorf("the named volume: %q", got)
		}
		if got, want := run("-v", "named:/var/lib/cache"), "999:998:750\nfrom the imagemore\n2\n"; got != want {
			t.Errorf("again: %q, want %q", got, want)
		}
		if got := run("-v", "linked:/srv/cache"); got != fresh {
			t.Errorf("by way of a link: %q", got)
		}
		if got := v.must(t, "run", "--rm", "-v", "bare:/var/lib/cache:nocopy", ref, "/bin/sh", "-c", "stat -c %u:%a /var/lib/cache; ls /var/lib/cache"); got != "0:755\n" {
			t.Errorf("with nocopy: %q", got)
		}
		if got := run(); got != fresh {
			t.Errorf("the volume that the image declares: %q", got)
		}
		v.must(t, "run", "-d", "--name", "kept", ref, "/bin/sleep", "1000")
		if got := v.must(t, "volume", "ls"); strings.Count(got, "\n") != 5 { // a header, named, linked, bare, kept's
			t.Errorf("volumes:\n%s", got)
		}
		v.must(t, "rm", "-f", "-v", "kept")
		v.must(t, "volume", "rm", "named", "linked", "bare")
		if got := v.must(t, "volume", "ls"); strings.Count(got, "\n") != 1 {
			t.Errorf("left: %s", got)
		}
		clean(t, n)
	})
}
