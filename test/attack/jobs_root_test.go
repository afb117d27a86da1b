package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// jobAttempts are those of authors of Nomad jobs, Mesos containers and Kubernetes pods, without
// access to the node's sockets.
func jobAttempts() []attempt {
	return append(append(nomadAttempts(), mesosAttempts()...), podAttempts()...)
}

const allocID = "5f0f0c4e-8d5c-4f3d-9a5d-0000000000aa"

type table = map[string]any

// nomadAttempts are jobs against the driver's configuration.
func nomadAttempts() []attempt {
	var all []attempt
	// HOST is replaced by a directory of the host that contains the file secret.
	for name, config := range map[string]table{
		"a bind of the host":                 {"volumes": []string{"HOST:/host"}},
		"a mount of the host":                {"mount": []any{table{"type": "bind", "source": "HOST", "target": "/host"}}},
		"a bind with dots":                   {"volumes": []string{"local/../../../../../../../..HOST:/host"}},
		"a mount with dots":                  {"mount": []any{table{"type": "bind", "source": "local/../../../../../../..HOST", "target": "/host"}}},
		"a bind over its root":               {"volumes": []string{"..:/"}},
		"a volume of a path's name":          {"mount": []any{table{"type": "volume", "source": "../../..", "target": "/host"}}},
		"privileged":                         {"privileged": true},
		"a capability beyond those allowed":  {"cap_add": []string{"SYS_ADMIN"}},
		"all capabilities":                   {"cap_add": []string{"all"}},
		"the host's pid namespace":           {"pid_mode": "host"},
		"the host's ipc namespace":           {"ipc_mode": "host"},
		"the host's user namespace unnamed":  {"userns_mode": "somebody"},
		"a sysctl of the host":               {"sysctl": []any{table{"kernel.core_pattern": "|/x"}}},
		"a sysctl by dots":                   {"sysctl": []any{table{"net/../kernel.core_pattern": "|/x"}}},
		"a security option that is a file":   {"security_opt": []string{"seccomp=HOST/secret"}},
		"a device with dots":                 {"devices": []any{table{"host_path": "/dev/../HOST/secret", "container_path": "/dev/x"}}},
		"a device that is a link":            {"devices": []any{table{"host_path": "HOST", "container_path": "/dev/x"}}},
		"a working directory by a link":      {"work_dir": "/proc/1/root"},
		"another runtime":                    {"runtime": "/bin/sh"},
		"a score below the node's":           {"oom_score_adj": -1000},
		"a network namespace that is a file": {"network_mode": "ns:HOST/secret"},
		"another container's namespace":      {"network_mode": "container:other"},
	} {
		all = append(all, attempt{name: "nomad: " + name, actor: jobAuthor, run: func(t *testing.T, w *world) result { return w.job(t, config, nil) }})
	}
	all = append(all, attempt{name: "nomad: a sysctl named net.//.vm.stat_interval", actor: jobAuthor, weak: weaken.SysctlNames, run: func(t *testing.T, w *world) result {
		return w.job(t, table{"network_mode": "none", "sysctl": []any{table{"net.//.vm.stat_interval": w.interval()}}}, nil)
	}})
	return all
}

// hostsFiles are files of the host that no job may change.
func hostsFiles(w *world) []string {
	return []string{"/proc/sys/kernel/core_pattern", statInterval, w.secret}
}

// statInterval is a parameter of the whole host, with the kernel's default.
const (
	statInterval        = "/proc/sys/vm/stat_interval"
	defaultStatInterval = "1\n"
)

// interval returns the value that the world's attempts write to statInterval. The attempts
// and their controls run at the same time on one host, so each has a value of its own.
func (w *world) interval() string {
	if w.weak == "" {
		return "9"
	}
	return "7"
}

// watch stores the content of the host's files. The returned function says which of them
// has changed, and restores it.
func (w *world) watch() (changed func() (result, bool)) {
	before := map[string][]byte{}
	for _, f := range hostsFiles(w) {
		before[f], _ = os.ReadFile(f)
	}
	written := []byte(w.interval() + "\n")
	if bytes.Equal(before[statInterval], written) { // left by a run that was killed
		before[statInterval] = []byte(defaultStatInterval)
		_ = os.WriteFile(statInterval, before[statInterval], 0o600)
	}
	return func() (result, bool) {
		for _, f := range hostsFiles(w) {
			after, err := os.ReadFile(f)
			if err == nil && (bytes.Equal(before[f], after) || f == statInterval && !bytes.Equal(after, written)) {
				continue
			}
			_ = os.WriteFile(f, before[f], 0o600)
			return is(reached, "%s was %q and is %q, %v", f, before[f], after, err), true
		}
		return result{}, false
	}
}

// plugin starts Nomad's plugin once.
func (w *world) plugin(t *testing.T) *nomadtest.Client {
	t.Helper()
	if w.nomad == nil {
		w.nomad = nomadtest.Plugin(w.t, filepath.Join(w.bin, "longshore"))
		w.nomad.Configure(w.t, table{"socket": filepath.Join(w.State, "nomad.sock"), "volumes": table{"enabled": false}}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	}
	return w.nomad
}

// job starts a task that looks for the host's file; more is added to its configuration.
func (w *world) job(t *testing.T, more table, change func(*nomaddriver.TaskConfig)) result {
	t.Helper()
	host := filepath.Dir(w.secret)
	config := table{
		"image": w.image, "command": "/bin/sh", "args": []string{
			"-c",
			"cat /host/secret HOST/secret /*/*/secret 2>&1; grep CapEff /proc/self/status; grep -c . /proc/1/status; cat /proc/1/comm; cat /proc/self/oom_score_adj; ls -l /dev/x 2>&1; cat /proc/sys/kernel/core_pattern",
		},
	}
	for k, v := range more {
		config[k] = v
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return is(unmade, "%v", err)
	}
	var placed table
	if err := json.Unmarshal(bytes.ReplaceAll(raw, []byte("HOST"), []byte(host)), &placed); err != nil {
		return is(unmade, "%v", err)
	}
	w.jobs++
	name := fmt.Sprint("job", w.jobs)
	dir := filepath.Join(w.Dir, "alloc")
	for _, d := range []string{"alloc/logs", "alloc/data", name + "/local", name + "/secrets"} {
		if err := os.MkdirAll(filepath.Join(dir, allocID, d), 0o777); err != nil {
			return is(unmade, "%v", err)
		}
	}
	task := nomadtest.Task(dir, allocID, name, "aaaaaaaa", placed)
	if change != nil {
		change(task)
	}
	driver := w.plugin(t).Driver
	changed := w.watch()
	_, err = driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task})
	defer func() {
		_, _ = driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true})
	}()
	if err != nil {
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded:
			return is(unmade, "%v", err)
		}
		return is(refused, "%v", err)
	}
	ended, err := driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
	if err != nil {
		return is(unmade, "%v", err)
	}
	out, _ := os.ReadFile(filepath.Join(dir, allocID, "alloc/logs", name+".stdout.0"))
	said := strings.TrimSpace(string(out))
	if r, ok := changed(); ok {
		return r
	}
	switch {
	case strings.Contains(said, strings.TrimSpace(secretText)):
		return is(reached, "it read the host's file: %s", said)
	case !strings.Contains(said, "CapEff"):
		return is(unmade, "it said %q and ended with %v", said, ended.GetResult())
	case strings.Contains(said, "CapEff:\t000001ff"):
		return is(reached, "it has all capabilities: %s", said)
	case strings.Contains(said, "\n-1000\n"):
		return is(reached, "it is never killed for memory: %s", said)
	}
	return is(bounded, "it ran with nothing of the host's: %q", said)
}

// mesosAttempts are containers for Mesos; the caller of the socket passes on the author's text.
func mesosAttempts() []attempt {
	var all []attempt
	for name, call := range map[string]string{
		"an id with dots":               `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"../../x"},"command":{"value":"true"}}}`,
		"an id that is a path":          `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"a/b"},"command":{"value":"true"}}}`,
		"a parent with dots":            `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"x","parent":{"value":".."}},"command":{"value":"true"}}}`,
		"a file read above the sandbox": `{"type":"READ_FILE","read_file":{"path":"HOST/secret","offset":0}}`,
		"a file read by dots":           `{"type":"READ_FILE","read_file":{"path":"WORK/containers/../../../secret","offset":0}}`,
		"a list above the sandbox":      `{"type":"LIST_FILES","list_files":{"path":"WORK/containers/../.."}}`,
		"a uri to a path with dots":     `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"uri"},"command":{"value":"true","uris":[{"value":"HOST/secret","output_file":"../../../../stolen"}]},"container":IMAGE}}`,
		"a uri to an absolute path":     `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"uri"},"command":{"value":"true","uris":[{"value":"HOST/secret","output_file":"HOST/stolen"}]},"container":IMAGE}}`,
		"a sandbox volume with dots":    `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"vol"},"command":{"value":"true"},"container":{"type":"MESOS","mesos":MESOS,"volumes":[{"mode":"RW","container_path":"/v","source":{"type":"SANDBOX_PATH","sandbox_path":{"type":"SELF","path":"../../.."}}}]}}}`,
		"a sandbox volume by absolute":  `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"vol"},"command":{"value":"true"},"container":{"type":"MESOS","mesos":MESOS,"volumes":[{"mode":"RW","container_path":"/v","source":{"type":"SANDBOX_PATH","sandbox_path":{"type":"SELF","path":"/etc"}}}]}}}`,
		"a volume of a parent it lacks": `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"vol"},"command":{"value":"true"},"container":{"type":"MESOS","mesos":MESOS,"volumes":[{"mode":"RW","container_path":"/v","source":{"type":"SANDBOX_PATH","sandbox_path":{"type":"PARENT","path":"x"}}}]}}}`,
		"a user that is no user":        `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"usr"},"command":{"value":"true","user":"root\nx"},"container":IMAGE}}`,
	} {
		all = append(all, attempt{name: "mesos: " + name, actor: jobAuthor, run: func(t *testing.T, w *world) result { return w.mesosCall(t, call) }})
	}
	return append(all, attempt{name: "mesos: a user whom the image makes root", actor: jobAuthor, weak: weaken.MesosUsers, run: rootByAnotherName})
}

// rootByAnotherName: low may run containers as nobody, and its image says that nobody
// has uid 0.
func rootByAnotherName(t *testing.T, w *world) result {
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		return is(unmade, "%v", err)
	}
	files = slices.DeleteFunc(files, func(f imagetest.File) bool { return f.Name == "etc/passwd" })
	files = append(files, imagetest.File{Name: "etc/passwd", Body: []byte("nobody:x:0:0::/:/bin/sh\n")})
	ref := imagetest.NewRegistry(t).Push("team/renamed", "v1", imagetest.Image{Layers: [][]imagetest.File{files}}.Build())
	if code, text, err := w.mesosPost(t, `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"parent"},"command":{"value":"exec sleep 1000"},"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":"`+w.image+`"}}}}}}`); err != nil || code >= 400 {
		return is(unmade, "%d %s, %v", code, text, err)
	}
	defer func() {
		for _, kind := range []string{"kill", "wait", "remove"} {
			_, _, _ = w.mesosPost(t, fmt.Sprintf(`{"type":"%s_CONTAINER","%s_container":{"container_id":{"value":"parent"}}}`, strings.ToUpper(kind), kind))
		}
	}()
	launch := func(id, image, user string) (int, error) {
		body := fmt.Sprintf(`{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":%q,"parent":{"value":"parent"}},"command":{"value":"id -u","user":%q},"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":%q}}}}}}`, id, user, image)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.mesos+"/api/v1", strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Content-Type", "application/json")
		r.SetBasicAuth("low", "lowsecret")
		resp, err := w.outside().Do(r)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if code, err := launch("good", w.image, "nobody"); err != nil || code != http.StatusOK {
		return is(unmade, "as nobody of an honest image: %d, %v", code, err)
	}
	var last result
	for i, user := range []string{"nobody", "0", "+0", "root"} {
		code, err := launch(fmt.Sprint("renamed", i), ref, user)
		if err != nil {
			return is(unmade, "%v", err)
		}
		if code < 400 {
			return is(reached, "as user %q of its image: %d", user, code)
		}
		last = is(refused, "as user %q of its image: %d", user, code)
	}
	return last
}

// mesosPost posts a call to the unix socket.
func (w *world) mesosPost(t *testing.T, body string) (int, string, error) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(w.State, "mesos.sock"))
	}}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://mesos/api/v1", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func (w *world) mesosCall(t *testing.T, call string) result {
	t.Helper()
	image := `{"image":{"type":"DOCKER","docker":{"name":"` + w.image + `"}}}`
	call = strings.NewReplacer("HOST", filepath.Dir(w.secret), "WORK", filepath.Join(w.Root, "mesos"), "IMAGE", `{"type":"MESOS","mesos":`+image+`}`, "MESOS", image).Replace(call)
	code, text, err := w.mesosPost(t, call)
	if err != nil {
		return is(unmade, "%v", err)
	}
	if code == http.StatusServiceUnavailable {
		return is(unmade, "%d %s", code, text)
	}
	if code < 400 {
		return is(reached, "%d %s", code, text)
	}
	return is(refused, "%d %s", code, text)
}

// podAttempts are pods and containers; kubelet passes on the author's text.
func podAttempts() []attempt {
	var all []attempt
	pod := func(name string, set func(w *world, p *runtimeapi.PodSandboxConfig)) {
		all = append(all, attempt{name: "pod: " + name, actor: jobAuthor, run: func(t *testing.T, w *world) result {
			cfg := w.PodConfig("evil")
			set(w, cfg)
			return w.evilPod(t, cfg, func(*runtimeapi.ContainerConfig) {})
		}})
	}
	container := func(name string, set func(w *world, c *runtimeapi.ContainerConfig)) {
		all = append(all, attempt{name: "container: " + name, actor: jobAuthor, run: func(t *testing.T, w *world) result {
			return w.evilPod(t, w.PodConfig("evil"), func(c *runtimeapi.ContainerConfig) { set(w, c) })
		}})
	}
	sysctl := func(key string) func(*world, *runtimeapi.PodSandboxConfig) {
		return func(_ *world, p *runtimeapi.PodSandboxConfig) { p.Linux.Sysctls = map[string]string{key: "|/attack"} }
	}
	pod("a sysctl of the host", sysctl("kernel.core_pattern"))
	pod("a sysctl by slashes", sysctl("kernel/core_pattern"))
	pod("a sysctl by dots", sysctl("net/../kernel.core_pattern"))
	pod("a sysctl by a way round", sysctl("net.ipv4/../../kernel.core_pattern"))
	for _, key := range []string{"net/../vm/stat_interval", "net.//.vm.stat_interval"} {
		pod("a sysctl named "+key, func(w *world, p *runtimeapi.PodSandboxConfig) { p.Linux.Sysctls = map[string]string{key: w.interval()} })
	}
	all[len(all)-1].weak = weaken.SysctlNames
	pod("a host name that is a path", func(_ *world, p *runtimeapi.PodSandboxConfig) { p.Hostname = "../../x" })
	pod("a host name with a line of its own", func(_ *world, p *runtimeapi.PodSandboxConfig) { p.Hostname = "x\n1.2.3.4 registry" })
	pod("a cgroup above its own", func(_ *world, p *runtimeapi.PodSandboxConfig) { p.Linux.CgroupParent = "../../../../x" })
	container("a log above its directory", func(_ *world, c *runtimeapi.ContainerConfig) { c.LogPath = "../../../secret" })
	container("an absolute log", func(w *world, c *runtimeapi.ContainerConfig) { c.LogPath = w.secret + "/../secret" })
	container("a working directory by a link", func(_ *world, c *runtimeapi.ContainerConfig) { c.WorkingDir = "/proc/1/root" })
	container("a seccomp profile of no path", func(_ *world, c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "../../etc/shadow"}}
	})
	container("a capability that is none", func(_ *world, c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN\x00"}}}
	})
	container("a user name that is a path", func(_ *world, c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "../../etc/shadow"}
	})
	container("a mount on /proc", func(w *world, c *runtimeapi.ContainerConfig) {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: filepath.Dir(w.secret), ContainerPath: "/proc/../../../../../etc/../proc"})
	})
	return all
}

// evilPod runs a container that looks for the host's file, and checks that the host is
// unchanged.
func (w *world) evilPod(t *testing.T, cfg *runtimeapi.PodSandboxConfig, set func(*runtimeapi.ContainerConfig)) result {
	t.Helper()
	changed := w.watch()
	no := func(err error) result {
		if r, ok := changed(); ok {
			return r
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			return is(unmade, "%v", err)
		}
		return is(refused, "%v", err)
	}
	r, err := w.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		return no(err)
	}
	pod := w.Pod(r.GetPodSandboxId(), cfg)
	defer pod.Remove(t)
	c := nodetest.ContainerConfig("evil", w.image, "/bin/sh", "-c", "pwd; echo here; cat "+w.secret+" /secret 2>&1")
	set(c)
	made, err := w.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: c, SandboxConfig: cfg})
	if err != nil {
		return no(err)
	}
	if _, err := w.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()}); err != nil {
		return no(err)
	}
	of := pod.Container(made.GetContainerId(), c)
	of.WaitExited(t)
	if r, ok := changed(); ok {
		return r
	}
	out, err := os.ReadFile(of.Log)
	if err != nil || !strings.Contains(string(out), "here") {
		return is(unmade, "%q, %v", out, err)
	}
	if strings.Contains(string(out), strings.TrimSpace(secretText)) {
		return is(reached, "it read the host's file: %s", out)
	}
	return is(bounded, "it ran with nothing of the host's: %q", out)
}
