package node

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
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/test/nodetest"
)

// dockerAPI sends requests to a node's Docker API.
type dockerAPI struct {
	t      *testing.T
	socket string
}

// call sends a request, and decodes the answer into v unless that is nil. It returns the status.
func (d dockerAPI) call(method, path string, body, v any) int {
	d.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		d.t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.socket)
	}}}
	req, err := http.NewRequestWithContext(d.t.Context(), method, "http://docker/v1.47"+path, bytes.NewReader(data))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	if v != nil {
		if err := json.Unmarshal(answer, v); err != nil {
			d.t.Fatalf("%s %s: %d, %s: %v", method, path, resp.StatusCode, answer, err)
		}
	}
	return resp.StatusCode
}

// run creates and starts a container.
func (d dockerAPI) run(name, image string, host map[string]any, command ...string) {
	d.t.Helper()
	var made struct{ Message string }
	if code := d.call("POST", "/containers/create?name="+name, map[string]any{"Image": image, "Cmd": command, "HostConfig": host}, &made); code != http.StatusCreated {
		d.t.Fatalf("create %s: %d %s", name, code, made.Message)
	}
	if code := d.call("POST", "/containers/"+name+"/start", nil, nil); code != http.StatusNoContent {
		d.t.Fatalf("start %s: %d", name, code)
	}
}

// labelledHome makes the directory of a node, and gives its images a type that containers may read. Layers inherit the type of
// the directory.
func labelledHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "longshore-node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	images := filepath.Join(home, "root", "image")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(images, "security.selinux", []byte("system_u:object_r:container_ro_file_t:s0\x00"), 0); err != nil {
		t.Fatal(err)
	}
	return home
}

// fileLabel returns the SELinux label of a file.
func fileLabel(t *testing.T, path string) string {
	t.Helper()
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(path, "security.selinux", buf)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(buf[:n]), "\x00")
}

// hostDir makes a directory with a file on the node.
func hostDir(t *testing.T, n *nodetest.Node, name string) string {
	t.Helper()
	dir := filepath.Join(n.Dir, name)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSELinuxOfEveryFace: with engine.selinux each container has a level that no other one has, whichever orchestrator asks
// for it, also after a restart of the container or of the agent. Volumes are relabelled as requested.
func TestSELinuxOfEveryFace(t *testing.T) {
	seLinux(t, func(t *testing.T) {
		home := labelledHome(t)
		socket := filepath.Join(home, "docker.sock")
		f := &labelled{userFaces: newUserFacesAt(t, home, "selinux = true\n[face.docker]\nenabled = true\nsocket = \""+socket+"\"\n")}
		docker := dockerAPI{t, socket}
		if code := docker.call("POST", "/images/create?fromImage="+strings.ReplaceAll(f.image, ":", "%3A"), nil, nil); code != http.StatusOK {
			t.Fatalf("pull: %d", code)
		}
		sleep := []string{"/bin/sleep", "1000"}
		docker.run("dockers", f.image, map[string]any{}, sleep...)
		levels := map[string]string{}
		check := func(name string) {
			t.Helper()
			level := f.levelOf(name)
			if other, ok := levels[level]; ok {
				t.Errorf("%s has the level %s of %s", name, level, other)
			}
			levels[level] = name
			if got := strings.TrimRight(f.cli("exec", "--force", f.id(name), "/bin/cat", "/proc/self/attr/current"), "\x00\n"); got != "system_u:system_r:container_t:"+level {
				t.Errorf("an exec in %s has the label %q", name, got)
			}
		}
		for face, start := range map[string]func(name, user string, nnp bool) made{"cli": f.byCLI, "cri": f.byCRI, "swarm": f.bySwarm, "nomad": f.byNomad, "mesos": f.byMesos} {
			check(start(face+"labelled", "0", false).key)
		}
		check("dockers")

		f.seLinuxOptions(docker)
		f.seLinuxVolumes(docker)
		f.seLinuxImages()

		level := f.levelOf("clilabelled")
		f.cli("restart", "-t", "0", "clilabelled")
		if got := f.levelOf("clilabelled"); got != level {
			t.Errorf("after its restart the container has the level %s, was %s", got, level)
		}
		f.n.Kill()
		f.n.Up()
		for level, name := range levels {
			if got := f.levelOf(name); got != level {
				t.Errorf("after the agent's restart %s has the level %s, was %s", name, got, level)
			}
		}
		f.cli(append([]string{"run", "-d", "--name", "later", f.image}, sleep...)...)
		check("later")
		if got := f.n.Finding(t, "confinement"); !strings.Contains(got, "SELinux (all containers)") {
			t.Errorf("doctor: %s", got)
		}
		f.n.Check()
	})
}

// seLinuxOptions tries the labels that requests name.
func (f *labelled) seLinuxOptions(docker dockerAPI) {
	f.t.Helper()
	f.cli("run", "-d", "--name", "holder", "--ipc", "shareable", f.image, "/bin/sleep", "1000")
	for name, c := range map[string]struct{ flags, want string }{
		"disabled":   {"--security-opt label=disable", ""},
		"privileged": {"--privileged", ""},
		"hostpid":    {"--pid host", ""},
		"level":      {"--security-opt label=level:s0:c5,c6", "system_u:system_r:container_t:s0:c5,c6"},
		"joined":     {"--ipc container:holder", f.labelOf("holder")},
		"joinedpid":  {"--pid container:holder", f.labelOf("holder")},
	} {
		f.cli(append(append([]string{"run", "-d", "--name", "opt" + name}, strings.Fields(c.flags)...), f.image, "/bin/sleep", "1000")...)
		got := f.labelOf("opt" + name)
		if c.want != "" && got != c.want || c.want == "" && strings.Contains(got, "container_t") {
			f.t.Errorf("%s has the label %q, want %q", c.flags, got, c.want)
		}
	}
	if got := f.cli("exec", "optjoinedpid", "/bin/sh", "-c", "kill -0 1 && cat /proc/1/comm"); got != "sleep" {
		f.t.Errorf("the first process in the joined pid namespace is %q", got)
	}
	if out, err := f.n.CLI("run", "--rm", "--security-opt", "label=type:stranger_t", f.image, "/bin/true"); err == nil {
		f.t.Errorf("a type that may not run a container's program has run one: %s", out)
	}
	for _, bad := range []string{"label=odd", "label=type:"} {
		if out, err := f.n.CLI("create", "--security-opt", bad, f.image); err == nil || !strings.Contains(err.Error()+out, "none of disable, user:") {
			f.t.Errorf("%s: %s, %v", bad, out, err)
		}
	}
	docker.run("dockerlevel", f.image, map[string]any{"SecurityOpt": []string{"label=level:s0:c8,c9"}}, "/bin/sleep", "1000")
	docker.run("dockernone", f.image, map[string]any{"SecurityOpt": []string{"label=disable"}}, "/bin/sleep", "1000")
	if got := f.labelOf("dockernone"); strings.Contains(got, "container_t") {
		f.t.Errorf("docker's label=disable: %q", got)
	}
	var doc struct{ ProcessLabel, MountLabel string }
	if docker.call("GET", "/containers/dockerlevel/json", nil, &doc); doc.ProcessLabel != "system_u:system_r:container_t:s0:c8,c9" || doc.MountLabel != "system_u:object_r:container_file_t:s0:c8,c9" || f.labelOf("dockerlevel") != doc.ProcessLabel {
		f.t.Errorf("docker's inspect: %+v, label %q", doc, f.labelOf("dockerlevel"))
	}
}

// seLinuxVolumes tries z and Z, named volumes, and directories that must keep their labels.
func (f *labelled) seLinuxVolumes(docker dockerAPI) {
	f.t.Helper()
	const denied = "Permission denied"
	host, shared, private := hostDir(f.t, f.n, "host"), hostDir(f.t, f.n, "shared"), hostDir(f.t, f.n, "private")
	try := func(want string, args ...string) {
		f.t.Helper()
		out, err := f.n.CLI(append([]string{"run", "--rm"}, args...)...)
		if got := strings.TrimSpace(out + fmt.Sprint(err)); !strings.Contains(got, want) {
			f.t.Errorf("%q: %s, want %s", args, got, want)
		}
		f.t.Logf("%-70s %s", strings.Join(args, " "), want)
	}
	read := []string{f.image, "/bin/cat", "/v/file"}
	with := func(volume string, flags ...string) []string { return append(append(flags, "-v", volume), read...) }
	try(denied, with(host+":/v")...)
	try("content", with(host+":/v", "--security-opt", "label=disable")...)
	if got := fileLabel(f.t, filepath.Join(host, "file")); strings.Contains(got, "container_file_t") {
		f.t.Errorf("a directory without z or Z has the label %s", got)
	}
	// Shared by all.
	try("content", with(shared+":/v:z")...)
	try("content", with(shared+":/v")...)
	if got := fileLabel(f.t, filepath.Join(shared, "file")); got != "system_u:object_r:container_file_t:s0" {
		f.t.Errorf("z: %s", got)
	}
	// One container's own.
	f.cli("run", "-d", "--name", "owner", "-v", private+":/v:Z", f.image, "/bin/sleep", "1000")
	if got := f.cli("exec", "owner", "/bin/cat", "/v/file"); got != "content" {
		f.t.Errorf("the owner reads %q", got)
	}
	if got := fileLabel(f.t, filepath.Join(private, "file")); got != "system_u:object_r:container_file_t:"+f.levelOf("owner") {
		f.t.Errorf("Z: %s", got)
	}
	try(denied, with(private+":/v")...)
	// Named volumes are shared.
	f.cli("run", "--rm", "-v", "named:/v", f.image, "/bin/sh", "-c", "mkdir -p /v/d && echo content >/v/file")
	path := f.cli("volume", "inspect", "-f", "{{.Mountpoint}}", "named")
	if got := fileLabel(f.t, path); got != "system_u:object_r:container_file_t:s0" {
		f.t.Errorf("a named volume: %s", got)
	}
	f.t.Logf("a file that a container has made in a shared volume: %s", fileLabel(f.t, filepath.Join(path, "file")))
	try("content", with("named:/v")...) // the next one may use it
	for _, dir := range []string{"/", "/usr", "/etc", "/home", "/var"} {
		if _, err := os.Stat(dir); err == nil {
			try("leave out z and Z", with(dir+":/v:z")...)
		}
	}
	docker.run("dockerz", f.image, map[string]any{"Binds": []string{host + ":/v:z"}}, "/bin/sh", "-c", "cat /v/file && exec sleep 1000")
	if got := f.cli("exec", "--force", f.id("dockerz"), "/bin/cat", "/v/file"); got != "content" || fileLabel(f.t, host) != "system_u:object_r:container_file_t:s0" {
		f.t.Errorf("docker's z: %q, label %s", got, fileLabel(f.t, host))
	}
	var refusal struct{ Message string }
	if code := docker.call("POST", "/containers/create?name=usr", map[string]any{"Image": f.image, "HostConfig": map[string]any{"Binds": []string{"/usr:/v:Z"}}}, &refusal); code != http.StatusBadRequest || !strings.Contains(refusal.Message, "leave out z and Z") {
		f.t.Errorf("docker's Z of /usr: %d %s", code, refusal.Message)
	}
	// Compose.
	project := filepath.Join(f.n.Dir, "project")
	if err := os.Mkdir(project, 0o700); err != nil {
		f.t.Fatal(err)
	}
	file := fmt.Sprintf("services:\n  web:\n    image: %s\n    command: [/bin/sleep, \"1000\"]\n    container_name: composed\n    security_opt: [\"label=level:s0:c11,c12\"]\n    volumes: [\"./data:/v:Z\"]\n", f.image)
	if err := os.WriteFile(filepath.Join(project, "compose.yaml"), []byte(file), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(project, "data"), 0o700); err != nil {
		f.t.Fatal(err)
	}
	f.cli("up", "-d", "-f", filepath.Join(project, "compose.yaml"))
	if got := f.labelOf("composed"); got != "system_u:system_r:container_t:s0:c11,c12" || fileLabel(f.t, filepath.Join(project, "data")) != "system_u:object_r:container_file_t:s0:c11,c12" {
		f.t.Errorf("compose: %s, its volume %s", got, fileLabel(f.t, filepath.Join(project, "data")))
	}
	f.cli("down", "-f", filepath.Join(project, "compose.yaml"))
}

// seLinuxImages mounts an image and an artifact.
func (f *labelled) seLinuxImages() {
	f.t.Helper()
	content := hostDir(f.t, f.n, "content")
	f.cli("artifact", "add", "example.com/files:1", filepath.Join(content, "file"))
	got := f.cli("run", "--rm", "--mount", "type=image,source="+f.image+",destination=/img", "--mount", "type=artifact,source=example.com/files:1,destination=/art", f.image,
		"/bin/sh", "-c", "cat /art; /img/bin/busybox echo ran; echo x 2>/dev/null >/art || echo read-only")
	if got != "content\nran\nread-only" {
		f.t.Errorf("an image and an artifact as volumes: %q", got)
	}
}
