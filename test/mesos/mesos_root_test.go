package mesos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

func id(value string) object { return object{"value": value} }

func nested(parent object, value string) object { return object{"value": value, "parent": parent} }

// withImage is the ContainerInfo of an image.
func withImage(ref string) object {
	return object{"type": "MESOS", "mesos": object{"image": object{"type": "DOCKER", "docker": object{"name": ref}}}}
}

func shell(command string) object { return object{"value": command} }

func about(id object) object { return object{"container_id": id} }

// TestMesos goes through the agent API on a real node.
func TestMesos(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\n"})
		ref := n.Busybox(t)
		for name, test := range map[string]func(t *testing.T, c *client, ref string){
			"standalone": standalone, "nested": nestedOnes, "sessions": sessions, "terminal": terminal, "host root": hostRoot, "restart": restart, "memory": memory,
			"images as volumes": imageVolumes, "artifacts": artifacts, "guide": guide, "granted": granted,
		} {
			t.Run(name, func(t *testing.T) {
				c := newClient(t, n)
				test(t, c, ref)
				n.Check()
				if left, _ := filepath.Glob(filepath.Join(n.Root, "mesos", "containers", "*")); len(left) > 0 {
					t.Errorf("sandboxes: %q", left)
				}
			})
		}
	})
}

func standalone(t *testing.T, c *client, ref string) {
	a := id("a")
	command := shell("id -u; pwd; echo $MESOS_SANDBOX $GREETING; echo oh >&2; touch mine; exit 7")
	command["user"] = "1000:1000"
	command["environment"] = object{"variables": []object{{"name": "GREETING", "value": "hello"}}}
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": command, "container": withImage(ref), "resources": []object{
		{"name": "cpus", "type": "SCALAR", "scalar": object{"value": 0.1}}, {"name": "mem", "type": "SCALAR", "scalar": object{"value": 64}},
	}}, 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":1792}}`)
	if got := c.file("a/stdout"); got != "1000\n/mnt/mesos/sandbox\n/mnt/mesos/sandbox hello\n" {
		t.Errorf("stdout %q", got)
	}
	if got := c.file("a/stderr"); got != "oh\n" {
		t.Errorf("stderr %q", got)
	}
	if _, text := c.call("LIST_FILES", object{"path": filepath.Join(c.n.Root, "mesos/containers/a")}); !strings.Contains(text, "/a/mine") {
		t.Errorf("listed %s", text)
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 200, "")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 202, "")
	c.is("KILL_CONTAINER", about(a), 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	c.is("REMOVE_CONTAINER", about(a), 200, "")
	if code, text := c.call("LAUNCH_CONTAINER", object{"container_id": a, "command": object{"value": "/no/such/program", "shell": false}, "container": withImage(ref)}); code != 400 || !strings.Contains(text, "/no/such/program") {
		t.Errorf("a program that is not there: %d %q", code, text)
	}
}

func nestedOnes(t *testing.T, c *client, ref string) {
	a := id("a")
	b := nested(a, "b")
	d := nested(b, "d")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("hostname > name; exec sleep 1000"), "container": withImage(ref)}, 200, "")
	// A nested one's sandbox cannot be led elsewhere by those above it.
	c.is("LAUNCH_CONTAINER", object{"container_id": b, "container": withImage(ref), "command": shell("mv containers x || rmdir containers || touch containers/x || echo cannot; exec sleep 1000")}, 200, "")
	c.is("LAUNCH_NESTED_CONTAINER", object{"container_id": d, "container": withImage(ref), "command": shell("echo deep; exit 3")}, 200, "")
	c.is("WAIT_NESTED_CONTAINER", about(d), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":768}}`)
	if got := c.file("a/containers/b/containers/d/stdout"); got != "deep\n" {
		t.Errorf("stdout %q", got)
	}
	nodetest.Eventually(t, "b has tried", func() bool { return strings.Contains(c.file("a/containers/b/stdout"), "cannot") })
	if _, text := c.call("GET_CONTAINERS", object{"show_nested": true, "show_standalone": true}); strings.Count(text, "executor_pid") != 2 || !strings.Contains(text, "mem_total_bytes") {
		t.Errorf("containers %s", text)
	}
	c.is("REMOVE_NESTED_CONTAINER", about(d), 200, "")
	c.is("REMOVE_NESTED_CONTAINER", about(b), 500, "Nested container has not terminated yet")
	c.is("KILL_CONTAINER", about(a), 200, "")
	c.is("WAIT_NESTED_CONTAINER", about(b), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	c.is("REMOVE_CONTAINER", about(a), 200, "")
}

func ends(map[string]string) bool { return false }

func sessions(t *testing.T, c *client, ref string) {
	a := id("a")
	s := nested(a, "s")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 200, "")
	resp := c.start(t.Context(), "LAUNCH_NESTED_CONTAINER_SESSION", object{"container_id": s, "command": shell("echo out; echo oh >&2; pwd; read x; echo got $x; exit 5")}, "application/recordio")
	got, err := records(resp.Body, func(all map[string]string) bool { return strings.Contains(all["STDOUT"], "sandbox\n") })
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("session: %d %v, %v", resp.StatusCode, got, err)
	}
	if code, text := c.input(s, stdin("word\n")); code != 200 {
		t.Errorf("input: %d %q", code, text)
	}
	rest, err := records(resp.Body, ends)
	if err != nil || got["STDOUT"]+rest["STDOUT"] != "out\n/mnt/mesos/sandbox\ngot word\n" || got["STDERR"]+rest["STDERR"] != "oh\n" {
		t.Errorf("session: %q, then %q, %v", got, rest, err)
	}
	_ = resp.Body.Close()
	c.is("WAIT_NESTED_CONTAINER", about(s), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":1280}}`)

	// A session and all its processes end with its client.
	ctx, leave := context.WithCancel(t.Context())
	gone := nested(a, "gone")
	resp = c.start(ctx, "LAUNCH_NESTED_CONTAINER_SESSION", object{"container_id": gone, "command": shell("sleep 4321 & echo here; wait")}, "application/recordio")
	if _, err := records(resp.Body, func(all map[string]string) bool { return all["STDOUT"] != "" }); err != nil {
		t.Error(err)
	}
	leave()
	_ = resp.Body.Close()
	c.is("WAIT_NESTED_CONTAINER", about(gone), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
	nodetest.Eventually(t, "what it has started ends", func() bool { return len(nodetest.Processes("sleep", "4321")) == 0 })
	c.is("KILL_CONTAINER", about(a), 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	c.is("REMOVE_CONTAINER", about(a), 200, "")
}

func terminal(t *testing.T, c *client, ref string) {
	a := id("a")
	info := withImage(ref)
	info["tty_info"] = object{}
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("read x; stty size; echo $x; read y"), "container": info}, 200, "")
	resp := c.start(t.Context(), "ATTACH_CONTAINER_OUTPUT", about(a), "application/recordio")
	defer func() { _ = resp.Body.Close() }()
	size := object{"type": "CONTROL", "control": object{"type": "TTY_INFO", "tty_info": object{"window_size": object{"rows": 33, "columns": 77}}}}
	if code, text := c.input(a, size, stdin("word\n")); code != 200 {
		t.Errorf("input: %d %q", code, text)
	}
	got, err := records(resp.Body, func(all map[string]string) bool { return strings.Contains(all["STDOUT"], "33 77\r\nword\r\n") })
	if err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if code, text := c.input(a, stdin("\n")); code != 200 {
		t.Errorf("input: %d %q", code, text)
	}
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
	if got := c.file("a/stdout"); !strings.Contains(got, "33 77") {
		t.Errorf("stdout %q", got)
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")
}

// hostRoot runs a program of the host's, in its sandbox.
func hostRoot(t *testing.T, c *client, _ string) {
	a := id("a")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("pwd; echo $MESOS_SANDBOX; echo text > mine; test -e /etc/os-release && echo host")}, 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
	dir := filepath.Join(c.n.Root, "mesos/containers/a")
	if got := c.file("a/stdout"); got != dir+"\n"+dir+"\nhost\n" {
		t.Errorf("stdout %q", got)
	}
	if got := c.file("a/mine"); got != "text\n" {
		t.Errorf("its file %q", got)
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")

	// A user other than root reaches its sandbox, though nobody may search the agent's
	// directories, and sees nothing else of them.
	if err := os.Chmod(c.n.Dir, 0o755); err != nil { // as /var/lib is
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(c.n.Dir, 0o700) }()
	command := shell("cd /; cd $MESOS_SANDBOX && id -u && echo mine > file && cat file; ls -A " + c.n.Root)
	command["user"] = "1000:1000"
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": command}, 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
	if got := c.file("a/stdout"); got != "1000\nmine\nmesos\n" {
		t.Errorf("stdout %q, stderr %q", got, c.file("a/stderr"))
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")
}

// restart: the agent dies; containers run on, the next agent has earlier ends, and sessions are
// gone.
func restart(t *testing.T, c *client, ref string) {
	a, b := id("a"), id("b")
	in := nested(a, "in")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 200, "")
	c.is("LAUNCH_CONTAINER", object{"container_id": in, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 200, "")
	c.is("LAUNCH_CONTAINER", object{"container_id": b, "command": shell("exit 4"), "container": withImage(ref)}, 200, "")
	c.is("WAIT_CONTAINER", about(b), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":1024}}`)
	s := nested(a, "s")
	resp := c.start(t.Context(), "LAUNCH_NESTED_CONTAINER_SESSION", object{"container_id": s, "command": shell("echo here; sleep 4322")}, "application/recordio")
	if _, err := records(resp.Body, func(all map[string]string) bool { return all["STDOUT"] != "" }); err != nil {
		t.Error(err)
	}
	over := nested(a, "over")
	ended := c.start(t.Context(), "LAUNCH_NESTED_CONTAINER_SESSION", object{"container_id": over, "command": shell("exit 6")}, "application/recordio")
	if _, err := records(ended.Body, ends); err != nil {
		t.Error(err)
	}
	_ = ended.Body.Close()
	c.is("WAIT_NESTED_CONTAINER", about(over), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":1536}}`)
	c.n.Kill()
	_ = resp.Body.Close()
	c.n.Up()
	c.is("WAIT_NESTED_CONTAINER", about(over), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":1536}}`)
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 202, "")
	c.is("WAIT_CONTAINER", about(b), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":1024}}`)
	nodetest.Eventually(t, "the session ends", func() bool { return len(nodetest.Processes("sleep", "4322")) == 0 })
	c.is("WAIT_NESTED_CONTAINER", about(s), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`) // the agent has killed it
	c.is("KILL_NESTED_CONTAINER", about(in), 200, "")
	c.is("WAIT_NESTED_CONTAINER", about(in), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
	c.is("KILL_CONTAINER", about(a), 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	c.is("REMOVE_CONTAINER", about(a), 200, "")
	c.is("REMOVE_CONTAINER", about(b), 200, "")
}

// TestDisk: a container that passes its quota in the sandbox or its root is ended.
func TestDisk(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\ndisk_watch_interval = \"1s\"\n"})
		ref := n.Busybox(t)
		c := newClient(t, n)
		for name, path := range map[string]string{"sandbox": "file", "root": "/file"} {
			a := id(name)
			c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("dd if=/dev/zero of=" + path + " bs=1M count=8; exec sleep 1000"), "container": withImage(ref), "resources": []object{
				{"name": "disk", "type": "SCALAR", "scalar": object{"value": 4}},
			}}, 200, "")
			wait := func() {
				t.Helper()
				code, text := c.call("WAIT_CONTAINER", about(a))
				for _, want := range []string{`"exit_status":9`, `"state":"TASK_FAILED"`, `"reason":"REASON_CONTAINER_LIMITATION_DISK"`, `) exceeds quota (4MB)`, `"name":"disk"`, `"value":4.0`} {
					if code != 200 || !strings.Contains(text, want) {
						t.Errorf("%s: %d %s lacks %s", name, code, text, want)
					}
				}
			}
			wait()
			n.Kill()
			n.Up()
			wait()
			c.is("REMOVE_CONTAINER", about(a), 200, "")
		}
		n.Check()
	})
}

// TestNetworks: a container in two networks of CNI; the builtin network is one alone.
func TestNetworks(t *testing.T) {
	const plugins = "/usr/lib/cni"
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
			t.Skipf("no CNI plugins here: %v", err)
		}
		conf := t.TempDir()
		for i, name := range []string{"one", "two"} {
			list := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"bridge","bridge":"cni%d","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.79.%d.0/24"}]]}}]}`,
				name, i, t.TempDir(), i)
			if err := os.WriteFile(filepath.Join(conf, name+".conflist"), []byte(list), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[network]\nmode = \"cni\"\n[network.cni]\nconf_dir = %q\nbin_dirs = [%q]\n[face.mesos]\nenabled = true\n", conf, plugins)})
		c := newClient(t, n)
		info := withImage(n.Busybox(t))
		info["network_infos"] = []object{{"name": "one"}, {"name": "two"}}
		c.is("LAUNCH_CONTAINER", object{"container_id": id("a"), "command": shell("cat /proc/net/dev; exec sleep 1000"), "container": info}, 200, "")
		_, text := c.call("GET_CONTAINERS", object{"show_standalone": true})
		for _, want := range []string{`"name":"one"`, `"name":"two"`, `"ip_address":"10.79.0.`, `"ip_address":"10.79.1.`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", text, want)
			}
		}
		nodetest.Eventually(t, "both interfaces are there", func() bool {
			got := c.file("a/stdout")
			return strings.Contains(got, "eth0:") && strings.Contains(got, "eth1:")
		})
		c.is("KILL_CONTAINER", about(id("a")), 200, "")
		c.is("WAIT_CONTAINER", about(id("a")), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
		c.is("REMOVE_CONTAINER", about(id("a")), 200, "")
		n.Check()
	})
}

func TestOneBuiltinNetwork(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\n"})
		c := newClient(t, n)
		info := withImage(n.Busybox(t))
		info["network_infos"] = []object{{"name": "default"}, {"name": "builtin"}}
		if code, text := c.call("LAUNCH_CONTAINER", object{"container_id": id("a"), "command": shell("true"), "container": info}); code != 400 || !strings.Contains(text, "2 interfaces: the builtin network makes one") {
			t.Errorf("%d %s", code, text)
		}
		n.Check()
	})
}

// TestGPUs: a device of a vendor's file is in the container that asks for one.
func TestGPUs(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		spec := `{"cdiVersion":"0.6.0","kind":"example.com/gpu","devices":[{"name":"0","containerEdits":{"env":["GPU=zero"],"deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/zero"}]}}]}`
		if err := os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{Config: "cdi_dirs = [\"" + dir + "\"]\n[face.mesos]\nenabled = true\ngpus = [\"example.com/gpu=0\"]\n"})
		ref := n.Busybox(t)
		c := newClient(t, n)
		gpus := func(n float64) []object {
			return []object{{"name": "gpus", "type": "SCALAR", "scalar": object{"value": n}}}
		}
		look := shell("echo $GPU; head -c 3 /dev/gpu0 | wc -c")
		c.is("LAUNCH_CONTAINER", object{"container_id": id("a"), "command": look, "container": withImage(ref), "resources": gpus(1)}, 200, "")
		c.is("WAIT_CONTAINER", about(id("a")), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
		if got := c.file("a/stdout"); got != "zero\n3\n" {
			t.Errorf("%q, %q", got, c.file("a/stderr"))
		}
		c.is("LAUNCH_CONTAINER", object{"container_id": id("b"), "command": look, "container": withImage(ref), "resources": gpus(2)}, 400, "Requested 2 gpus but only 1 available")
		c.is("REMOVE_CONTAINER", about(id("a")), 200, "")
		n.Check()
	})
}

// TestEndedOnesAreCleared: a node that keeps nothing for long.
func TestEndedOnesAreCleared(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\ngc_delay = \"3s\"\n"})
		ref := n.Busybox(t)
		c := newClient(t, n)
		a, b := id("a"), id("b")
		in := nested(a, "in")
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 200, "")
		c.is("LAUNCH_CONTAINER", object{"container_id": in, "command": shell("exit 4"), "container": withImage(ref)}, 200, "")
		c.is("LAUNCH_CONTAINER", object{"container_id": b, "command": shell("mkdir -p x/y; exit 5"), "container": withImage(ref)}, 200, "")
		cut := filepath.Join(c.n.Root, "mesos/containers/cut/containers")
		if err := os.MkdirAll(cut, 0o755); err != nil {
			t.Fatal(err)
		}
		n.Kill()
		n.Up()
		for what, id := range map[string]object{"a standalone one": b, "a nested one": in} {
			nodetest.Eventually(t, what+" is cleared", func() bool {
				code, _ := c.call("WAIT_CONTAINER", about(id))
				return code == http.StatusNotFound
			})
		}
		nodetest.Eventually(t, "no sandbox is left but that of what runs", func() bool {
			top, _ := filepath.Glob(filepath.Join(n.Root, "mesos/containers/*"))
			below, _ := filepath.Glob(filepath.Join(n.Root, "mesos/containers/a/containers/*"))
			return len(top) == 1 && filepath.Base(top[0]) == "a" && len(below) == 0
		})
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec sleep 1000"), "container": withImage(ref)}, 202, "")
		c.is("KILL_CONTAINER", about(a), 200, "")
		nodetest.Eventually(t, "all is cleared", func() bool {
			left, _ := filepath.Glob(filepath.Join(n.Root, "mesos/containers/*"))
			return len(left) == 0
		})
		n.Check()
	})
}

// imageVolumes: an image beside another one and in the sandbox, beside the host's root
// too, where nobody can write.
func imageVolumes(t *testing.T, c *client, ref string) {
	image := withImage(ref)["mesos"].(object)["image"]
	look := shell("cd $MESOS_SANDBOX; test -x more/bin/busybox && echo there; touch more/bin/x || echo cannot; ls more/bin/busybox")
	for name, info := range map[string]object{"image": withImage(ref), "host": {"type": "MESOS"}} {
		a := id(name)
		info["volumes"] = []object{{"mode": "RO", "container_path": "more", "image": image}}
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": look, "container": info}, 200, "")
		c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
		if got := c.file(name + "/stdout"); got != "there\ncannot\nmore/bin/busybox\n" {
			t.Errorf("%s: %q, %q", name, got, c.file(name+"/stderr"))
		}
		c.is("REMOVE_CONTAINER", about(a), 200, "")
	}
}

// artifacts: an OCI artifact is a volume, and no container's root.
func artifacts(t *testing.T, c *client, ref string) {
	model := imagetest.NewRegistry(t).Push("team/model", "v1", imagetest.Artifact{Type: "application/vnd.example", Files: []imagetest.ArtifactFile{
		{Title: "a", Body: []byte("a\n")}, {Path: "d/b", Body: []byte("b\n")},
	}}.Build())
	a, info := id("a"), withImage(ref)
	info["volumes"] = []object{{"mode": "RO", "container_path": "/model", "image": withImage(model)["mesos"].(object)["image"]}}
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("cat /model/a /model/d/b; touch /model/x || echo cannot"), "container": info}, 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
	if got := c.file("a/stdout"); got != "a\nb\ncannot\n" {
		t.Errorf("%q, %q", got, c.file("a/stderr"))
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")
	if code, text := c.call("LAUNCH_CONTAINER", object{"container_id": id("b"), "command": shell("true"), "container": withImage(model)}); code != 400 || !strings.Contains(text, "it is an artifact") {
		t.Errorf("%d %s", code, text)
	}
}

// memory: a container past its limit ends with its cause.
func memory(t *testing.T, c *client, ref string) {
	a := id("a")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("exec tail -c 1000000000 /dev/zero"), "container": withImage(ref), "resources": []object{
		{"name": "mem", "type": "SCALAR", "scalar": object{"value": 40}},
	}}, 200, "")
	code, text := c.call("WAIT_CONTAINER", about(a))
	for _, want := range []string{`"exit_status":9`, `"state":"TASK_FAILED"`, `"reason":"REASON_CONTAINER_LIMITATION_MEMORY"`, `"name":"mem"`, `"value":40.0`} {
		if code != 200 || !strings.Contains(text, want) {
			t.Errorf("%d %s lacks %s", code, text, want)
		}
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")
}

// guide runs the program of docs/guide/mesos.md.
func guide(t *testing.T, c *client, ref string) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	text, err := os.ReadFile("../../docs/guide/mesos.md")
	if os.IsNotExist(err) {
		t.Skip("the guide is not on this machine")
	}
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(text), "```python\n")
	program, _, ok := strings.Cut(program, "```")
	if !ok {
		t.Fatal("the guide has no program")
	}
	if n := len(slices.DeleteFunc(strings.Split(program, "\n"), func(line string) bool { return line == "" })); n > 30 {
		t.Errorf("it has %d lines", n)
	}
	out, err := exec.CommandContext(t.Context(), python, "-c", program, filepath.Join(c.n.State, "mesos.sock"), ref).CombinedOutput()
	if want := "session: hello\nsession ended with 3\ncontainer ended by signal 9\nits stdout: hello\n"; err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}
