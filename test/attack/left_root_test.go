package attack

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// leftAttempts leave something on the host: a program that has root's rights, files beyond a container's root, or
// volumes that nobody has.
func leftAttempts() []attempt {
	return []attempt{
		{name: "cp: a setuid program of a user that becomes root's", actor: containerRoot, weak: weaken.CopiedModes, run: copiedSetuid},
		{name: "cp: a program with capabilities", actor: containerRoot, run: copiedCapabilities},
		{name: "mounts onto links that lead out of the root", actor: registry, run: linkedTargets},
		{name: "volumes of a create that fails", actor: registry, weak: weaken.FailedVolumes, run: failedVolumes},
		{name: "volumes of a create during which the agent dies", actor: registry, alone: true, weak: weaken.FailedVolumes, run: interruptedVolumes},
		{name: "100,000 volumes of an image", actor: registry, weak: weaken.ImageVolumes, run: manyVolumes},
	}
}

// must runs a command of the node.
func (w *world) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.CLI(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// copied runs a script in a container, copies the directory /planted out of it as the host's root, and returns
// the copy.
func (w *world) copied(t *testing.T, script string) (dir string) {
	t.Helper()
	w.jobs++
	name := fmt.Sprint("copied", w.jobs)
	w.must(t, "run", "-d", "--name", name, "-v", w.self+":/attacker:ro", w.image, "/bin/sleep", "100000")
	defer func() { _, _ = w.CLI("rm", "-f", name) }()
	w.must(t, "exec", name, "/bin/sh", "-c", script)
	dir = filepath.Join(t.TempDir(), "out")
	w.must(t, "cp", name+":/planted", dir)
	return dir
}

// bits are the modes that matter for an owner.
const bits = fs.ModeSetuid | fs.ModeSetgid

// copiedSetuid copies a user's setuid program and setgid directory out of a container as the host's root.
func copiedSetuid(t *testing.T, w *world) result {
	dir := w.copied(t, `mkdir /planted /planted/d && cp /bin/busybox /planted/f && b=/bin/busybox && $b chown -R 1000:1000 /planted && $b chmod 6755 /planted/f /planted/d && test -u /planted/f`)
	var said []string
	for _, name := range []string{"f", "d"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return is(unmade, "%v", err)
		}
		if st.Mode()&bits != 0 {
			return is(reached, "the host's root has %s with the mode %s", name, st.Mode())
		}
		said = append(said, fmt.Sprintf("%s has the mode %s", name, st.Mode()))
	}
	return is(refused, "%s", strings.Join(said, ", "))
}

// copiedCapabilities copies a program with capabilities out of a container as the host's root.
func copiedCapabilities(t *testing.T, w *world) result {
	dir := w.copied(t, `mkdir /planted && cp /bin/busybox /planted/f && /attacker `+probeArg+` "set capabilities" /planted/f >/planted/said`)
	said, err := os.ReadFile(filepath.Join(dir, "said"))
	if err != nil {
		return is(unmade, "%v", err)
	}
	if r := decode(said); r.Outcome != bounded {
		return is(unmade, "the container's root could not give its program capabilities: %s", r)
	}
	n, err := unix.Getxattr(filepath.Join(dir, "f"), capabilityXattr, nil)
	if err == nil {
		return is(reached, "the copy has %d bytes of capabilities", n)
	}
	if err != unix.ENODATA { //nolint:errorlint // a plain errno
		return is(unmade, "%v", err)
	}
	return is(refused, "the container's program has capabilities, the copy has none: %v", err)
}

const capabilityXattr = "security.capability"

// copyProbes run in a container.
func copyProbes() []probe {
	return []probe{{name: "set capabilities", run: func(args []string) result {
		// VFS_CAP_REVISION_2, effective, with CAP_CHOWN permitted.
		value := []byte{1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		if err := unix.Setxattr(args[0], capabilityXattr, value, 0); err != nil {
			return answered("setxattr", err)
		}
		n, err := unix.Getxattr(args[0], capabilityXattr, nil)
		if err != nil {
			return answered("getxattr", err)
		}
		return is(bounded, "%d bytes of capabilities", n)
	}}}
}

// volumesLeft returns how many volumes the node has.
func (w *world) volumesLeft(t *testing.T) int {
	t.Helper()
	return len(strings.Fields(w.must(t, "volume", "ls", "-q")))
}

// volumeImage pushes an image that declares volumes and a user. Each volume gets a file, unless there are very
// many.
func volumeImage(t *testing.T, volumes int, user string) string {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", "sh", "sleep")
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	declared := map[string]struct{}{}
	for i := range volumes {
		name := fmt.Sprintf("v/%d", i)
		declared["/"+name] = struct{}{}
		if volumes <= 100 {
			files = append(files, imagetest.File{Name: name + "/file", Body: []byte("x")})
		}
	}
	return imagetest.NewRegistry(t).Push("team/volumes", "v1", imagetest.Image{
		Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Cmd: []string{"/bin/sleep", "100000"}, User: user, Volumes: declared},
	}.Build())
}

// failedVolumes creates containers of an image with volumes and an unknown user.
func failedVolumes(t *testing.T, w *world) result {
	ref := volumeImage(t, 20, "nobody-of-this-name")
	w.must(t, "pull", ref)
	defer func() { _, _ = w.CLI("rmi", "-f", ref) }()
	before := w.volumesLeft(t)
	var last error
	for range 3 {
		if _, last = w.CLI("create", ref); last == nil {
			return is(unmade, "a container of a user that is nobody was made")
		}
	}
	if left := w.volumesLeft(t) - before; left > 0 {
		_, _ = w.CLI("volume", "prune", "-f")
		return is(reached, "three creates that failed have left %d volumes: %v", left, last)
	}
	return is(refused, "three creates of 20 volumes each failed and left none: %v", last)
}

// interruptedVolumes kills the agent after a create has made the volumes of an image.
func interruptedVolumes(t *testing.T, w *world) result {
	ref := volumeImage(t, 20, "")
	w.must(t, "pull", ref)
	before := w.volumesLeft(t)
	w.Kill()
	w.SetEnv(append(w.env(), "LONGSHORE_FAILPOINT=create.volumes")...)
	w.Up()
	if out, err := w.CLI("create", ref); err == nil {
		return is(unmade, "the agent has not died: %s", out)
	}
	w.Died()
	w.SetEnv(w.env()...)
	w.Up()
	w.Check()
	if left := w.volumesLeft(t) - before; left > 0 {
		return is(reached, "the create that was interrupted has left %d volumes", left)
	}
	return is(refused, "the create was interrupted after its 20 volumes were made, and has left none")
}

// manyVolumes pulls an image that declares 100,000 volumes.
func manyVolumes(t *testing.T, w *world) result {
	ref := volumeImage(t, 100_000, "")
	err := w.pull(t, ref)
	if err == nil {
		w.forget(t, ref)
		return is(reached, "the image was pulled, and each container of it gets 100,000 volumes")
	}
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "100000 volumes") {
		return is(unmade, "%v", err)
	}
	return is(refused, "%v", err)
}

// linkedTargets mounts a file and a directory onto links of an image. The links lead to paths that do not exist on
// the host or in the container.
func linkedTargets(t *testing.T, w *world) result {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		return is(unmade, "%v", err)
	}
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		return is(unmade, "%v", err)
	}
	up := strings.Repeat("../", 20)
	ref := imagetest.NewRegistry(t).Push("team/links", "v1", imagetest.Image{Layers: [][]imagetest.File{append(
		files,
		imagetest.File{Name: "absolute", Link: outside + "/absolute"},
		imagetest.File{Name: "dots", Link: up + outside[1:] + "/dots"},
		imagetest.File{Name: "first", Link: "second"}, imagetest.File{Name: "second", Link: up + outside[1:] + "/chain"},
		imagetest.File{Name: "process", Link: "/proc/1/root" + outside + "/process"},
	)}}.Build())
	if err := w.pull(t, ref); err != nil {
		return is(unmade, "%v", err)
	}
	defer w.forget(t, ref)
	var said []string
	for _, target := range []string{"absolute", "dots", "first", "process"} {
		for _, source := range []string{w.self, t.TempDir()} {
			out, err := w.CLI("run", "--rm", "-v", source+":/"+target+":ro", ref, "/bin/sh", "-c", "test -e /"+target+" && echo there")
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				return is(reached, "on the host there is now %v, %v", left, err)
			}
			// A link through another process is refused.
			if (err != nil || !strings.Contains(out, "there")) && (target != "process" || !strings.Contains(err.Error(), "symbolic links")) {
				return is(unmade, "%s: %q, %v", target, out, err)
			}
			said = append(said, fmt.Sprintf("%s: %s, %v", target, one(out), err))
		}
	}
	return is(bounded, "the host has none of the targets: %s", strings.Join(said, "; "))
}
