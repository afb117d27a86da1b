package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/subprocess"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	profilesDir = "/sys/kernel/security/apparmor"
	parser      = "/usr/sbin/apparmor_parser"
)

// appArmor runs a test where the kernel has AppArmor on and its parser is installed. hack/vm.sh
// profiles boots such a machine.
func appArmor(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(roottest.Env) == "1" {
		if !ocispec.AppArmorEnabled() {
			t.Skip("AppArmor is off on this machine: see make vm-profiles")
		}
		if _, err := os.Stat(parser); err != nil {
			t.Skipf("no apparmor_parser: %v", err)
		}
	}
	roottest.Run(t, func(t *testing.T) {
		if err := unix.Mount("securityfs", "/sys/kernel/security", "securityfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		body(t)
	})
}

// parse loads a profile.
func parse(t *testing.T, text string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), parser, "--replace", "--skip-cache", "--quiet")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("load %s: %v: %s", text, err, out)
	}
}

// loaded reports whether the kernel has a profile.
func loaded(t *testing.T, name string) bool {
	t.Helper()
	b, err := os.ReadFile(profilesDir + "/profiles")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains("\n"+string(b), "\n"+name+" (enforce)\n")
}

// unload removes the default profile, as `aa-remove-unknown` does.
func unload(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(profilesDir+"/.remove", []byte(ocispec.DefaultProfile), 0); err != nil {
		t.Fatal(err)
	}
	if loaded(t, ocispec.DefaultProfile) {
		t.Fatal("the profile is still loaded")
	}
}

const confined, unconfined = ocispec.DefaultProfile + " (enforce)", "unconfined"

// labelOf returns the label of a container's program.
func (f *userFaces) labelOf(key string) string {
	f.t.Helper()
	id := f.id(key)
	var c []struct{ State struct{ Pid int } }
	out, err := f.n.CLI("inspect", id)
	if err == nil {
		err = json.Unmarshal([]byte(out), &c)
	}
	if err != nil || len(c) != 1 || c[0].State.Pid == 0 {
		f.t.Fatalf("inspect %s: %v: %s", key, err, out)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", c[0].State.Pid))
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimRight(string(b), "\n\x00")
}

// cli runs a command that succeeds.
func (f *userFaces) cli(args ...string) string {
	f.t.Helper()
	out, err := f.n.CLI(args...)
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// criLabel runs a container by the CRI and returns the label of its program.
func (f *userFaces) criLabel(name string, sc *runtimeapi.LinuxContainerSecurityContext) string {
	f.t.Helper()
	cfg := nodetest.ContainerConfig(name, f.image, "/bin/sleep", "1000")
	cfg.Linux.SecurityContext = sc
	f.pod.Run(f.t, cfg)
	return f.labelOf(name)
}

// TestAppArmorsDefaultOfEachFace: a container that names no profile has the default, and so have its
// execs. Another profile, no profile and all privileges are served on request.
func TestAppArmorsDefaultOfEachFace(t *testing.T) {
	appArmor(t, func(t *testing.T) {
		f := newUserFaces(t)
		for face, start := range map[string]func(name, user string, nnp bool) made{"cli": f.byCLI, "cri": f.byCRI, "swarm": f.bySwarm, "nomad": f.byNomad, "mesos": f.byMesos} {
			start(face+"0", "0", false)
			if got := f.labelOf(face + "0"); got != confined {
				t.Errorf("%s: %q", face, got)
			}
			if got := f.cli("exec", "--force", f.id(face+"0"), "/bin/cat", "/proc/self/attr/current"); got != confined {
				t.Errorf("an exec in a container of %s: %q", face, got)
			}
		}
		start := f.byCRI("nnp", "33", true)
		if got, err := start.own("", "cat /proc/self/attr/current"); strings.TrimSpace(got) != confined {
			t.Errorf("an exec of a user without new privileges: %q, %v", got, err)
		}

		parse(t, "profile mine { file, capability, signal, network, }")
		localhost := func(name string) *runtimeapi.SecurityProfile {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: name}
		}
		for name, c := range map[string]struct {
			sc   *runtimeapi.LinuxContainerSecurityContext
			want string
		}{
			"runtimedefault": {&runtimeapi.LinuxContainerSecurityContext{Apparmor: &runtimeapi.SecurityProfile{}}, confined},
			"unconfined":     {&runtimeapi.LinuxContainerSecurityContext{Apparmor: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}}, unconfined},
			"localhost":      {&runtimeapi.LinuxContainerSecurityContext{Apparmor: localhost("mine")}, "mine (enforce)"},
		} {
			if got := f.criLabel(name, c.sc); got != c.want {
				t.Errorf("cri, %s: %q, want %q", name, got, c.want)
			}
		}
		cfg := nodetest.ContainerConfig("missing", f.image, "/bin/sleep", "1000")
		cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{Apparmor: localhost("nobodys")}
		_, err := f.n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.pod.ID, Config: cfg, SandboxConfig: f.pod.Config})
		if err == nil || !strings.Contains(err.Error(), "profile nobodys is not loaded on this node: load it with apparmor_parser") {
			t.Errorf("a profile that is not loaded: %v", err)
		}
		for name, c := range map[string]struct{ flag, want string }{
			"free": {"--security-opt=apparmor=unconfined", unconfined}, "all": {"--privileged", unconfined}, "named": {"--security-opt=apparmor=mine", "mine (enforce)"},
			"ids": {"--userns=private", confined}, "crun": {"--runtime=crun", confined},
		} {
			f.cli("run", "-d", "--name", name, c.flag, f.image, "sleep", "1000")
			if got := f.labelOf(name); got != c.want {
				t.Errorf("run %s: %q, want %q", c.flag, got, c.want)
			}
		}
		f.cli("stop", "-t", "30", "named", "ids") // by a signal that the profile lets through
		f.n.Check()
	})
}

// TestAppArmorIsReloaded removes the default profile, as a reload of AppArmor does. A new container,
// a further process and a container that starts again have it again.
func TestAppArmorIsReloaded(t *testing.T) {
	appArmor(t, func(t *testing.T) {
		f := newUserFaces(t)
		if !loaded(t, ocispec.DefaultProfile) {
			t.Error("the agent serves without the default profile")
		}
		f.byCLI("old", "0", false)
		id := f.id("old")
		unload(t)
		t.Logf("after its profile was removed, a running container's label is %q", f.labelOf("old"))
		if got := f.cli("exec", id, "/bin/cat", "/proc/self/attr/current"); got != confined {
			t.Errorf("an exec after the profile was removed: %q", got)
		}
		unload(t)
		f.byCRI("new", "0", false)
		if got := f.labelOf("new"); got != confined {
			t.Errorf("a container after the profile was removed: %q", got)
		}
		unload(t)
		f.cli("restart", "-t", "0", "old")
		if got := f.labelOf("old"); got != confined {
			t.Errorf("a container that was started again: %q", got)
		}
		if got := f.n.Finding(t, "confinement"); !strings.Contains(got, "AppArmor (profile "+ocispec.DefaultProfile+")") {
			t.Errorf("doctor: %s", got)
		}

		// Without a parser nothing can be loaded.
		unload(t)
		if err := unix.Mount("/dev/null", parser, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		if out, err := f.n.CLI("exec", id, "/bin/true"); err == nil || !strings.Contains(err.Error(), "its apparmor profile is no longer loaded") {
			t.Errorf("an exec whose profile cannot be loaded: %q, %v", out, err)
		}
		f.byCLI("without", "0", false)
		if got := f.labelOf("without"); got != unconfined {
			t.Errorf("a container without a parser: %q", got)
		}
		if got := f.cli("exec", f.id("without"), "/bin/cat", "/proc/self/attr/current"); got != unconfined {
			t.Errorf("an exec in a container without a profile: %q", got)
		}
		if got := f.cli("why", "without"); !strings.Contains(got, "install the package apparmor") {
			t.Errorf("why: %s", got)
		}
		if got := f.n.Finding(t, "confinement"); !strings.Contains(got, "containers run without a profile") {
			t.Errorf("doctor: %s", got)
		}
		if err := unix.Unmount(parser, 0); err != nil {
			t.Fatal(err)
		}

		// The next agent replaces the profile of an older one.
		parse(t, "profile "+ocispec.DefaultProfile+" { file, }")
		f.n.Kill()
		f.n.Up()
		f.cli("restart", "-t", "0", "old")
		if got := f.cli("exec", id, "/bin/sh", "-c", "sleep 100 & kill $! && wait $!; echo $?"); got != "143" {
			t.Errorf("a signal between the container's processes: %q", got)
		}
		f.n.Check()
	})
}

// TestAppArmorsDefaultForbids compares a confined container with a free one. The two containers differ in the
// profile only: both have all capabilities and devices, and nothing is masked or filtered.
func TestAppArmorsDefaultForbids(t *testing.T) {
	appArmor(t, func(t *testing.T) {
		f := newUserFaces(t)
		dir := t.TempDir()
		program := filepath.Join(dir, "confined")
		if err := copyProgram(filepath.Join(nodetest.Bin(t), "confined"), program); err != nil {
			build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/confined")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		firmware := ""
		_ = filepath.WalkDir("/sys/firmware", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && firmware == "" {
				firmware = path
			}
			return nil
		})
		if firmware == "" {
			t.Fatal("no file below /sys/firmware")
		}
		outside := subprocess.Command(t.Context(), "/bin/sleep", "1000")
		if err := outside.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = subprocess.Kill(outside); _ = outside.Wait() })
		try := func(profile string) map[string]string {
			out := f.cli("run", "--rm", "--privileged", "--security-opt", "apparmor="+profile, "--pid=host", "-v", dir+":/attempts:ro",
				"-v", "/sys/kernel/security:/sys/kernel/security", f.image, "/attempts/confined", strconv.Itoa(outside.Process.Pid), firmware)
			results := map[string]string{}
			for line := range strings.Lines(out + "\n") {
				name, result, _ := strings.Cut(strings.TrimSpace(line), ": ")
				results[name] = result
			}
			return results
		}
		free, bound := try(unconfined), try(ocispec.DefaultProfile)
		refused := 0
		for name, result := range bound {
			t.Logf("%-45s %-10s %s", name, free[name], result)
			if free[name] != "ok" {
				t.Errorf("control: %s: %s", name, free[name])
			}
			if result == "EACCES" || result == "EPERM" {
				refused++
			} else if name != "fsopen and move_mount" { // not mediated before Linux 6.7
				t.Errorf("%s: %s", name, result)
			}
		}
		if refused < 12 {
			t.Errorf("%d attempts were refused", refused)
		}
		f.n.Check()
	})
}

// copyProgram copies a program.
func copyProgram(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// TestAppArmorInDockersAPI: inspect shows the profiles under dockerd's names, and info that AppArmor is on.
func TestAppArmorInDockersAPI(t *testing.T) {
	appArmor(t, func(t *testing.T) {
		n := nodetest.StartDocker(t)
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.Socket)
		}}}
		call := func(method, path, body string, into any) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), method, "http://docker"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode >= 300 {
				t.Fatalf("%s %s: %s, %v: %s", method, path, resp.Status, err, text)
			}
			if into != nil {
				if err := json.Unmarshal(text, into); err != nil {
					t.Fatal(err)
				}
			}
		}
		var info struct{ SecurityOptions []string }
		call(http.MethodGet, "/info", "", &info)
		if len(info.SecurityOptions) == 0 || info.SecurityOptions[0] != "name=apparmor" {
			t.Errorf("info: %q", info.SecurityOptions)
		}
		call(http.MethodPost, "/images/create?fromImage=busybox&tag=latest", "", nil)
		for host, want := range map[string]string{
			`{}`: ocispec.DefaultProfile, `{"Privileged": true}`: unconfined, `{"SecurityOpt": ["apparmor=unconfined"]}`: unconfined,
		} {
			var made struct {
				ID string `json:"Id"`
			}
			call(http.MethodPost, "/containers/create", `{"Image": "busybox", "Cmd": ["sleep", "1000"], "HostConfig": `+host+`}`, &made)
			var doc struct {
				AppArmorProfile string
				State           struct{ Pid int }
			}
			call(http.MethodGet, "/containers/"+made.ID+"/json", "", &doc)
			if doc.AppArmorProfile != "" {
				t.Errorf("%s, created: %q", host, doc.AppArmorProfile)
			}
			call(http.MethodPost, "/containers/"+made.ID+"/start", "", nil)
			call(http.MethodGet, "/containers/"+made.ID+"/json", "", &doc)
			label, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", doc.State.Pid))
			if has, _, _ := strings.Cut(strings.TrimSpace(string(label)), " "); doc.AppArmorProfile != want || has != want || err != nil {
				t.Errorf("%s: inspect says %q, the process has %q, want %q, %v", host, doc.AppArmorProfile, label, want, err)
			}
			call(http.MethodDelete, "/containers/"+made.ID+"?force=1", "", nil)
		}
	})
}
