package tour

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

//go:embed tour.txt
var tour string

// line is one line of the tour and its expected outcome.
type line struct {
	number  int
	text    string // as it is typed, $T is the tool
	status  int
	compare string         // same, lines, status, differs, own
	row     string         // of the guide, for differs
	says    *regexp.Regexp // nil for anything
}

var expectation = regexp.MustCompile("^\t(\\d+) (same|lines|status|own|differs `([^`]+)`)(?: (.+))?$")

func lines(t *testing.T) []line {
	t.Helper()
	var list []line
	for n, text := range strings.Split(tour, "\n") {
		switch {
		case text == "" || text[0] == '#':
		case text[0] != '\t':
			list = append(list, line{number: n + 1, text: text})
		default:
			m := expectation.FindStringSubmatch(text)
			if m == nil || len(list) == 0 || list[len(list)-1].compare != "" {
				t.Fatalf("line %d of the tour is not what is expected of a line: %q", n+1, text)
			}
			l := &list[len(list)-1]
			l.status, _ = strconv.Atoi(m[1])
			l.compare, _, _ = strings.Cut(m[2], " ")
			l.row = m[3]
			if m[4] != "" {
				l.says = regexp.MustCompile(m[4])
			}
		}
	}
	for _, l := range list {
		if l.compare == "" {
			t.Fatalf("line %d of the tour does not say what is expected of it", l.number)
		}
	}
	return list
}

// answer is a tool's result of a line.
type answer struct {
	status      int
	out, errors string
}

// said is the output, or the error where there is none.
func (a answer) said() string {
	if a.out != "" {
		return strings.TrimSuffix(a.out, "\n")
	}
	return strings.TrimSuffix(a.errors, "\n")
}

// tool types lines in a directory of its own.
type tool struct {
	dir, command string
	in           []string // starts the shell
	env          []string
}

func (x tool) run(t *testing.T, text string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), roottest.Patience())
	defer cancel()
	var out, errs bytes.Buffer
	argv := append(slices.Clone(x.in), "sh", "-c", text)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = x.dir, &out, &errs, time.Second
	cmd.Env = append(append(os.Environ(), "T="+x.command, "HOME="+x.dir, "PWD="+x.dir, "REGISTRY_AUTH_FILE="+x.dir+"/auth.json"), x.env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("%s: %v", text, err)
	}
	return answer{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// credentialHelper keeps its input beside itself, as docker's protocol for such programs wants.
const credentialHelper = `#!/bin/sh
kept=${0%/*}/kept
case $1 in
store) cat >"$kept" ;;
get) cat "$kept" 2>/dev/null || { echo "credentials not found in native keychain"; exit 1; } ;;
erase) rm -f "$kept" ;;
esac
`

// prepare makes the files that the lines name.
func prepare(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string][]byte{
		"box.tar": archive, "env.list": []byte("# two\nONE=first\nTWO=second\n"), "site/index.html": []byte("hello from the host\n"),
		"tree/a/b":  []byte("deep\n"),
		"auth.json": []byte("{}"), "helped.json": []byte(`{"credHelpers": {"` + registryHost + `": "tour"}}`), "bin/docker-credential-tour": []byte(credentialHelper),
		"cdi/nvidia.json": []byte(`{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [
			{"name": "all", "containerEdits": {"env": ["GPUS=all"], "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}]}},
			{"name": "1", "containerEdits": {"env": ["GPUS=1"]}}]}`),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "bin/docker-credential-tour"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// archive is the image of the tour, as docker saves one.
func archive(t *testing.T) []byte {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", append([]string{"pwd", "sort", "tar", "test"}, nodetest.Applets...)...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	files = append(files, imagetest.File{Name: "srv/seed", Mode: 0o644, Body: []byte("from the image\n")})
	built := imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{
		Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}, Labels: map[string]string{"of": "the-tour"}, Volumes: map[string]struct{}{"/srv": {}},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
	}}.Build()
	var out bytes.Buffer
	if err := imagetest.WriteDocker(&out, map[string]imagetest.Built{"docker.io/library/box:latest": built}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// unlike are texts that differ each time, and their stand-ins.
var unlike = []struct {
	old  *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`sha256:[0-9a-f]{64}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "ID"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(` +\n`), "\n"},
	{regexp.MustCompile(`\blocalhost/`), "docker.io/library/"}, // where podman puts names of archives that have no registry
	{regexp.MustCompile(`\^@`), ""},                            // script(1) types a NUL when its input ends; the terminal echoes it before or after the output
}

func plain(s string) string {
	for _, r := range unlike {
		s = r.old.ReplaceAllString(s, r.with)
	}
	return s
}

// rows are the first cells of the guide's table of differences.
func rows(t *testing.T) []string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/guide/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(guide), "\n## What differs from docker and podman\n")
	if !ok {
		t.Fatal("the guide has no chapter about what differs")
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var list []string
	for row := range strings.Lines(rest) {
		if cell, ok := strings.CutPrefix(row, "| `"); ok {
			cell, _, _ = strings.Cut(cell, "`")
			list = append(list, cell)
		}
	}
	return list
}

// TestTheTourAndTheGuide: a difference that a line of the tour names is a row of the guide, and a
// row of the guide is shown by a line of the tour.
func TestTheTourAndTheGuide(t *testing.T) {
	list, guide := lines(t), rows(t)
	if len(list) < 120 {
		t.Errorf("the tour has only %d lines", len(list))
	}
	shown := map[string]bool{}
	for _, l := range list {
		if l.row != "" && !slices.Contains(guide, l.row) {
			t.Errorf("line %d: %s: the guide's table of what differs has no row %q", l.number, l.text, l.row)
		}
		shown[l.row] = true
	}
	for _, row := range guide {
		if !shown[row] {
			t.Errorf("the guide says that %q differs, and no line of the tour shows it", row)
		}
	}
}

// TestTheTour: each line of the tour has its outcome. With PODMAN=, podman's program, it types
// the same to podman and compares: a difference that is not in the guide is an error, and so is
// a row of the guide without one.
func TestTheTour(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		image := archive(t)
		dir := prepare(t, image)
		n := nodetest.Start(t, nodetest.Options{Config: "cdi_dirs = [\"" + dir + "/cdi\"]\n"})
		ours := tool{dir: dir, command: filepath.Join(nodetest.Bin(t), "longshore"), env: []string{"LONGSHORE_SOCKET=" + filepath.Join(n.State, "control.sock")}}
		registry(t)
		theirs := podman(t, image)
		for _, l := range lines(t) {
			visit(t, l, ours, theirs)
		}
		n.Check()
	})
}

func visit(t *testing.T, l line, ours tool, theirs *tool) {
	t.Helper()
	name := fmt.Sprintf("line %d: %s", l.number, l.text)
	begun := time.Now()
	got := ours.run(t, l.text)
	if testing.Verbose() {
		t.Logf("%s: %v", name, time.Since(begun).Round(time.Millisecond))
	}
	if got.status != l.status || l.says != nil && !l.says.MatchString(got.said()) {
		t.Errorf("%s\nstatus %d, want %d, and words like %v\n%s%s", name, got.status, l.status, l.says, got.out, got.errors)
	}
	if strings.Contains(got.errors, "goroutine ") || strings.Contains(got.errors, "rpc error") {
		t.Errorf("%s\n%s", name, got.errors)
	}
	if theirs == nil || l.compare == "own" {
		return
	}
	want := theirs.run(t, l.text)
	if testing.Verbose() && l.compare != "same" {
		t.Logf("longshore: %d %q %s\npodman:    %d %q %s", got.status, got.out, got.errors, want.status, want.out, want.errors)
	}
	same := got.status == want.status
	switch l.compare {
	case "same", "differs":
		same = same && plain(got.out) == plain(want.out)
	case "lines":
		same = same && strings.Count(got.out, "\n") == strings.Count(want.out, "\n")
	}
	switch {
	case !same && l.compare != "differs":
		t.Errorf("%s (%s)\nlongshore: %d %q %s\npodman:    %d %q %s", name, l.compare, got.status, got.out, got.errors, want.status, want.out, want.errors)
	case same && l.compare == "differs":
		t.Errorf("%s: the guide says that it differs, and it is the same: %d %q", name, got.status, got.out)
	}
}

// podman returns the real podman, nil without one: on directories of its own, in a network
// namespace of its own, with a cgroup of the test's as the root of all cgroups.
func podman(t *testing.T, image []byte) *tool {
	t.Helper()
	path := os.Getenv("PODMAN")
	if path == "" {
		t.Log("without PODMAN= nothing is compared with the real podman")
		return nil
	}
	path, err := exec.LookPath(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := prepare(t, image)
	at, err := os.MkdirTemp("", "longshore-podman-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(at) })
	for name, text := range map[string]string{
		"containers.conf": "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"crun\"\nvolume_path = \"" + at + "/volumes\"\n" +
			"[containers]\nlog_driver = \"k8s-file\"\ndefault_ulimits = [\"nofile=1024:2048\", \"nproc=1024:2048\"]\n[network]\nnetwork_config_dir = \"" + at + "/net\"\n",
		"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"registries.conf": "unqualified-search-registries = [\"docker.io\"]\nshort-name-mode = \"permissive\"\n[[registry]]\nlocation = \"" + registryHost + "\"\ninsecure = true\n",
		"storage.conf":    "[storage]\ndriver = \"overlay\"\ngraphroot = \"" + at + "/root\"\nrunroot = \"" + at + "/run\"\n",
		"net/empty":       "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(at, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cgroup := roottest.Cgroup(t)
	world := world(t, cgroup)
	registry(t, "nsenter", "--target="+strconv.Itoa(world), "--net")
	x := &tool{
		dir: dir, command: path + " --log-level=error --tmpdir " + at + "/tmp",
		// In a cgroup namespace only its own processes may be moved: the shell is one of them first.
		in: []string{
			"sh", "-c", `for h in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do [ ! -e $h$CGROUP ] || echo $$ >$h$CGROUP/cgroup.procs; done; exec nsenter "$@"`, "sh",
			"--target=" + strconv.Itoa(world), "--cgroup", "--mount", "--net", "--wdns=" + dir,
		},
		env: []string{
			"CGROUP=" + cgroup, "CONTAINERS_CONF=" + at + "/containers.conf", "CONTAINERS_REGISTRIES_CONF=" + at + "/registries.conf", "CONTAINERS_STORAGE_CONF=" + at + "/storage.conf",
		},
	}
	t.Cleanup(func() { x.run(t, "$T rm -a -f -t 0; $T volume prune -f; umount "+at+"/root/overlay") })
	return x
}

// world makes the namespaces that podman runs in, and returns a process that has them.
func world(t *testing.T, cgroup string) int {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-ec", `
for h in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do
	[ -e $h/cgroup.procs ] && mountpoint -q $h || continue
	mkdir $h$CGROUP
	for f in cpuset.cpus cpuset.mems; do [ ! -e $h$CGROUP/$f ] || cat $h/$f >$h$CGROUP/$f; done
	echo $$ >$h$CGROUP/cgroup.procs
done
exec unshare --cgroup --mount --net --propagation=private sh -ec '
ip link set lo up
for h in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do
	[ ! -e $h$CGROUP ] || mount --bind $h$CGROUP $h
done
echo made
exec sleep infinity'`)
	cmd.Env = append(os.Environ(), "CGROUP="+cgroup)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("a world for podman: %v", err)
	}
	return cmd.Process.Pid
}
