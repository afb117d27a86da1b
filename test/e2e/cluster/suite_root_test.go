package cluster

import (
	"cmp"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
)

// suiteEnv is Kubernetes' e2e.test. focusEnv and skipEnv choose specs, workersEnv is
// how many run side by side.
const (
	suiteEnv   = "LONGSHORE_E2E_TEST"
	focusEnv   = "LONGSHORE_E2E_FOCUS"
	skipEnv    = "LONGSHORE_E2E_SKIP"
	workersEnv = "LONGSHORE_E2E_WORKERS"
)

// conformance are the specs that are run when nobody chooses: those of any node,
// and those of the network.
const conformance = `\[NodeConformance\]|\[sig-network\].*\[Conformance\]`

// cannot are the specs that this machine cannot run, with the reasons.
func cannot(t *testing.T) map[string]string {
	t.Helper()
	specs := map[string]string{
		`\[Disruptive\]`: "they take nodes and their services apart by ssh",
		`\[Feature:`:     "what a cluster has to be set up for",
	}
	if exec.CommandContext(t.Context(), "ip", "link", "add", "probe", "type", "dummy").Run() != nil {
		specs["PrivilegedPod"] = "it makes a network device of the kind dummy, which this kernel does not have"
	} else {
		command(t, "ip", "link", "delete", "probe")
	}
	const score = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(score)
	if err != nil {
		t.Fatal(err)
	}
	if os.WriteFile(score, []byte("-997"), 0) != nil {
		restarts := `(cpu & mem restart( \+ resize initContainers)? resizing (only pod-level )?(cpu|mem)|cpu restart resizing (only pod-level )?cpu|mem restart resizing (cpu &|(only pod-level )?mem))`
		specs["PLR guaranteed qos - 1 container .* "+restarts] = "a restarted container of a Guaranteed pod has an oom_score_adj of -997, which this machine forbids (CAP_SYS_RESOURCE)"
	} else if err := os.WriteFile(score, before, 0); err != nil {
		t.Fatal(err)
	}
	return specs
}

// TestSuite runs Kubernetes' own e2e suite against the cluster.
func TestSuite(t *testing.T) {
	if _, err := os.Stat(os.Getenv(suiteEnv)); err != nil {
		t.Skipf("%s names no e2e.test", suiteEnv)
	}
	isolated(t, suite)
}

func suite(t *testing.T) {
	c := newCluster(t)
	c.suiteImages(t)
	focus, skip := os.Getenv(focusEnv), os.Getenv(skipEnv)
	if focus == "" {
		focus = conformance
	}
	if skip == "" {
		var all []string
		for pattern, why := range cannot(t) {
			t.Logf("not run: %s: %s", pattern, why)
			all = append(all, pattern)
		}
		skip = strings.Join(all, "|")
	}
	// Ginkgo runs serial specs by themselves, after the others.
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.bin, "ginkgo"), "--nodes="+cmp.Or(os.Getenv(workersEnv), "1"), "--no-color", "--focus="+focus,
		"--skip="+skip, "--timeout=10h", os.Getenv(suiteEnv), "--", "--kubeconfig="+c.pki.kubeconfig("admin"), "--kubectl-path="+filepath.Join(c.bin, "kubectl"),
		"--provider=skeleton", "--dns-domain=cluster.local", "--num-nodes=2", "--report-dir="+c.dir)
	cmd.Dir = c.dir
	name := filepath.Join(c.dir, "suite.log")
	if keep := os.Getenv(keepEnv); keep != "" {
		name = filepath.Join(keep, "suite.log") // to be read while it runs
	}
	log, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout = log
	if progress := os.Getenv(roottest.ProgressEnv); progress != "" {
		f, err := os.OpenFile(progress, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.Stdout = io.MultiWriter(log, f)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	out := []byte(read(t, name))
	if ran := regexp.MustCompile(`Ran \d+ of \d+ Specs[^\n]*\n[^\n]*`).Find(out); ran == nil {
		t.Errorf("the suite has run nothing: %v\n%s", err, out[max(0, len(out)-4000):])
	} else {
		t.Logf("%s", ran)
	}
	// A guest of QEMU leaves nothing but its console.
	for _, report := range regexp.MustCompile(`(?ms)^• \[(FAILED|TIMEDOUT|PANICKED)\].*?^-{30}`).FindAll(out, -1) {
		t.Logf("%s", report[:min(len(report), 20_000)])
	}
	for _, line := range regexp.MustCompile(`(?m)^\s*\[(FAIL|TIMEDOUT|PANICKED)\] .*$`).FindAll(out, -1) {
		t.Errorf("%s", line)
	}
	if err != nil {
		t.Errorf("the suite: %v", err)
	}
}

// suiteImages makes the images that the suite of 1.37.2 requests, from programs of this machine.
func (c *cluster) suiteImages(t *testing.T) {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", applets(t)...)
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, imagetest.File{Name: "usr/"}, imagetest.File{Name: "usr/bin/"}, imagetest.File{Name: "usr/bin/env", Link: "/bin/env"})
	config := ocispec.ImageConfig{Env: []string{"PATH=/bin:/usr/bin"}}
	files = slices.DeleteFunc(files, func(f imagetest.File) bool { return f.Name == "bin/sh" })
	shell := append(withLibraries(t, "bash"), c.program(t, "peer", "bin/sh"))
	busybox := imagetest.Image{Layers: [][]imagetest.File{files, shell}, Config: config}.Build()
	files = append(files, imagetest.File{Name: "bin/sh", Link: "/usr/bin/dash"}, imagetest.File{Name: "bin/bash", Link: "/usr/bin/bash"})
	for _, p := range []string{"bash", "curl", "dash", "dig", "getent"} {
		files = append(files, withLibraries(t, p)...)
	}
	files = append(files, c.program(t, "agnhost", "agnhost"), imagetest.File{Name: "agnhost-2", Link: "agnhost"}, c.program(t, "peer", "bin/nc"), imagetest.File{Name: "uploads/"})
	c.pki.server("localhost", "localhost") // agnhost's certificate for TLS
	files = append(files, file(t, c.pki.cert("localhost"), "localhost.crt"), file(t, c.pki.keyFile("localhost"), "localhost.key"))
	for name, text := range map[string]string{
		"etc/passwd":        "root:x:0:0::/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n",
		"etc/group":         "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
		"etc/nsswitch.conf": "hosts: files dns\n", // for getent
	} {
		files = append(files, imagetest.File{Name: name, Body: []byte(text)})
	}
	config.Entrypoint, config.Cmd = []string{"/agnhost"}, []string{"pause"}
	pause := imagetest.Image{Layers: [][]imagetest.File{{c.program(t, "agnhost", "agnhost")}}, Config: config}.Build()
	helper := imagetest.Image{Layers: [][]imagetest.File{append(files, registryFiles("pause", "testing", pause)...)}, Config: config}.Build()
	config.User = "1234"
	nonroot := imagetest.Image{Layers: [][]imagetest.File{files}, Config: config}.Build()
	nnp := c.program(t, "nonewprivs", "nnp")
	nnp.Mode |= fs.ModeSetuid | fs.ModeSetgid
	rights := imagetest.Image{Layers: [][]imagetest.File{{nnp}}, Config: ocispec.ImageConfig{Cmd: []string{"/nnp"}}}.Build()
	for name, b := range map[string]imagetest.Built{
		"e2e-test-images/agnhost:2.66.1": helper, "e2e-test-images/agnhost:2.55": helper, "e2e-test-images/busybox:1.37.0-2": busybox,
		"e2e-test-images/nonroot:1.5": nonroot, "e2e-test-images/nonewprivs:1.4": rights, "e2e-test-images/glibc-dns-testing:2.1.1": helper, "pause:3.10.2": pause,
		"e2e-test-images/nginx:1.27.0-2": helper, "e2e-test-images/nginx:1.28.0-2": helper, // these must run
	} {
		repo, tag, _ := strings.Cut(name, ":")
		c.registry.Push(repo, tag, b)
	}
}

// registryFiles are an image as agnhost's registry server reads it.
func registryFiles(name, tag string, b imagetest.Built) []imagetest.File {
	top := "var/registry/" + name
	files := []imagetest.File{{Name: top + "/manifests/" + tag, Body: []byte(b.Manifest.Digest)}}
	for d, body := range b.Blobs {
		kind := "blobs"
		if d == b.Manifest.Digest {
			kind = "manifests"
		}
		files = append(files, imagetest.File{Name: path.Join(top, kind, d.Algorithm().String(), d.Encoded()[:2], d.Encoded(), "data"), Body: body})
	}
	return files
}

// applets are busybox's, but for itself and an applet with too few options.
func applets(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "/bin/busybox", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(a string) bool { return a == "busybox" || a == "nc" })
}

// withLibraries are the files of a program of this machine, with all that it is
// linked with; nothing when there is no such program.
func withLibraries(t *testing.T, program string) []imagetest.File {
	t.Helper()
	found, err := exec.LookPath(program)
	if err != nil {
		t.Logf("no %s on this machine: specs that need it fail", program)
		return nil
	}
	out, err := exec.CommandContext(t.Context(), "ldd", found).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := []imagetest.File{file(t, found, "usr/bin/"+program)}
	for _, lib := range regexp.MustCompile(`/[^ ]+`).FindAllString(string(out), -1) {
		files = append(files, file(t, lib, strings.TrimPrefix(lib, "/")))
	}
	return files
}

// file is a program or library of this machine as a file of an image.
func file(t *testing.T, name, as string) imagetest.File {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return imagetest.File{Name: as, Body: b, Mode: 0o755}
}
