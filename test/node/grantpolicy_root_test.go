package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// wishing are the images of TestAGrantIsOnlyNarrowed: without a wish, with one as a label, with one as an annotation, with one that is no
// document.
func wishing() []imagetest.Image {
	label := func(doc string) imagetest.Image {
		return imagetest.Image{Config: ocispec.ImageConfig{Labels: map[string]string{core.GrantAnnotation: doc}}}
	}
	const read = "{data: !mount {path: /data, rights: [read]}, log: !container_log , home: !env HOME}"
	byAnnotation := label("{}")
	byAnnotation.Annotations = map[string]string{core.GrantAnnotation: read}
	return []imagetest.Image{{}, label(read), byAnnotation, label("{data: !mount"), label("{other: !mount /var/lib/kubelet}")}
}

const (
	noWish = iota
	wishLabel
	wishAnnotation
	wishBroken
	wishForeign
)

// TestAGrantIsOnlyNarrowed: the wish of an image and the rules of the operator only narrow a request. Each program
// prints its argument, and inspect says the same.
func TestAGrantIsOnlyNarrowed(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "grants.yaml")
		policy := func(text string) {
			t.Helper()
			if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		const everything = "rules: [{allow: [!container_log , !mount {path: \"*\", rights: [read, write, execute]}, !env \"*\", !random , !secret \"*\", !listen {tcp: 1-65535}]}]"
		policy(everything)
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("grants_policy = %q\n", file)})
		images := grantedImages(t, n, wishing()...)
		pod := n.RunPod(t, n.PodConfig("narrow"))
		mount := &runtimeapi.Mount{ContainerPath: "/data", HostPath: t.TempDir()}
		names := 0
		container := func(image int, document string) *runtimeapi.ContainerConfig {
			names++
			cfg := granted(fmt.Sprintf("c%d", names), images[image], document, mount)
			cfg.Command = []string{"/program", "argument"}
			if document == "" {
				cfg.Annotations = nil
			}
			cfg.Envs = []*runtimeapi.KeyValue{{Key: "HOME", Value: []byte("/h")}, {Key: "PASSWORD", Value: []byte("secret")}}
			return cfg
		}
		const asked = "{data: !mount {path: /data, rights: [read, write]}, env: !env PASSWORD, log: !container_log , random: !random }"
		for _, c := range []struct {
			name, policy      string
			image             int
			document          string
			want, inspect     string
			neverIn, neverLog string
		}{
			{
				"the request alone", everything, noWish, asked, `{"data":{"fd":4},"env":"secret","log":{"fd":5},"random":{"fd":6}}`,
				`"accepted":[{"descriptor":4,"at":"data","grant":"!mount {path: /data, rights: [read, write]}"},{"descriptor":5,"at":"log","grant":"!container_log"},{"descriptor":6,"at":"random","grant":"!random"}],"environment":["PASSWORD"]}`, `"denied"`, "",
			},
			{
				"the image narrows the request", everything, wishLabel, asked, `{"data":{"fd":4},"env":null,"log":{"fd":5},"random":null}`,
				`"denied":[{"at":"data","position":"line 1, column 8","asked":"!mount {path: /data, rights: [read, write]}","given":"!mount {path: /data, rights: [read]}"},{"at":"env"`, "", "secret",
			},
			{"the annotation of a manifest is before a config's label", everything, wishAnnotation, asked, `{"data":{"fd":4},"env":null,"log":{"fd":5},"random":null}`, `"denied"`, "", "secret"},
			{"the image's wish is the argument of a request without one", everything, wishLabel, "", `{"data":{"fd":4},"home":"/h","log":{"fd":5}}`, `"accepted"`, `"denied"`, ""},
			{
				"the operator narrows the request", "rules: [{for: {owner: cri, namespace: test}, allow: [!container_log , !mount {path: /data, rights: read}]}]", noWish, asked,
				`{"data":{"fd":4},"env":null,"log":{"fd":5},"random":null}`, `"denied":[{"at":"data"`, "", "secret",
			},
			{"the operator narrows the image", "rules: [{for: {owner: cri}, allow: [!container_log ]}]", wishLabel, "", `{"data":null,"home":null,"log":{"fd":4}}`, `"denied"`, "", ""},
			{
				"all three", "rules: [{allow: [!env PASSWORD, !mount {path: /data, rights: read}]}]", wishLabel, asked,
				`{"data":{"fd":4},"env":null,"log":null,"random":null}`, `"denied"`, "", "secret",
			},
			{"no rule is for it", "rules: [{for: {owner: nomad}, allow: [!container_log ]}, {for: {namespace: other}, allow: [!random ]}]", noWish, asked, `{"data":null,"env":null,"log":null,"random":null}`, `"denied"`, `"accepted"`, "secret"},
			{"a rule by the image's name", "rules: [{for: {image: \"*granted0:latest\"}, allow: [!random ]}]", noWish, asked, `{"data":null,"env":null,"log":null,"random":{"fd":4}}`, `"accepted"`, "", "secret"},
		} {
			policy(c.policy)
			ct := pod.Run(t, container(c.image, c.document))
			if st := ct.WaitExited(t); st.GetExitCode() != 0 || !strings.Contains(ct.ReadLog(t), "stdout F "+c.want+"\n") {
				t.Errorf("%s: it ended with %d: %s", c.name, st.GetExitCode(), ct.ReadLog(t))
			}
			verbose, err := n.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: ct.ID, Verbose: true})
			if err != nil {
				t.Fatal(err)
			}
			info := verbose.GetInfo()["info"]
			if !strings.Contains(info, c.inspect) || c.neverIn != "" && strings.Contains(info, c.neverIn) {
				t.Errorf("%s: inspect: %s", c.name, info)
			}
			if c.neverLog != "" && strings.Contains(ct.ReadLog(t), c.neverLog) {
				t.Errorf("%s: %s", c.name, ct.ReadLog(t))
			}
			if out, err := n.CLI("inspect", ct.ID); err != nil || !strings.Contains(strings.Join(strings.Fields(out), ""), strings.ReplaceAll(`"landlock":`, " ", "")) {
				t.Errorf("%s: longshore inspect: %v: %s", c.name, err, out)
			}
		}
		policy(everything)
		attacks := []struct {
			name     string
			image    int
			document string
			text     string
		}{
			{"the image's document is broken", wishBroken, asked, "line 1, column"},
			{"the image wishes a mount of the host", wishForeign, "", `line 1, column 9: Unknown volume mount "/var/lib/kubelet"`},
			{"a mount by its path on the host", noWish, "{data: !mount " + mount.GetHostPath() + "}", "Unknown volume mount"},
			{"a path out of a mount", noWish, "{data: !mount /data/../etc}", `without "." and ".."`},
			{"a path below a mount", noWish, "{data: !mount /data/sub}", "Unknown volume mount"},
			{"the root", noWish, "{data: !mount /}", `Unknown volume mount "/"`},
			{"what the engine mounts itself", noWish, "{data: !mount /etc/resolv.conf}", "Unknown volume mount"},
			{"more than the mount has", noWish, "{data: !mount {path: /ro, rights: [read, write]}}", `volume mount "/ro" gives read,execute, the document asks for read,write`},
			{"a secret that nobody delivered", noWish, "{s: !secret /data/x}", `line 1, column 5: unknown secret "/data/x"`},
			{"an unknown tag", noWish, "{s: !everything }", "line 1, column 5"},
			{"a label that overrides an identity", noWish, "{s: !server {a: [b]}}", "Switchboard label keys and values must be strings"},
			{"a variable that it has not", noWish, "{s: !env LD_PRELOAD}", `unknown environment variable "LD_PRELOAD"`},
			{"an empty document", noWish, " ", "the document is empty"},
		}
		refused := func(name, text string, code codes.Code, cfg *runtimeapi.ContainerConfig) {
			t.Helper()
			cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: "/ro", HostPath: mount.GetHostPath(), Readonly: true})
			_, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config})
			if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), text) {
				t.Errorf("%s: %v, want %s: %s", name, err, code, text)
			}
		}
		for _, a := range attacks {
			refused(a.name, a.text, codes.InvalidArgument, container(a.image, a.document))
		}
		interactive := container(noWish, asked)
		interactive.Stdin = true
		refused("a standard input", "a standard input: not possible", codes.FailedPrecondition, interactive)

		// A wrong file lets no new program start, names the place, and running ones keep all.
		server := container(noWish, "{listen: !listen {tcp: 8080}, greeting: held}")
		server.Command = []string{"/program"}
		running := pod.Run(t, server)
		policy("rules:\n- allow: [!container_log , !everything x]\n")
		refused("a policy that is broken", file+": line 2, column 28", codes.FailedPrecondition, container(noWish, asked))
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		refused("a policy that is gone", "no such file", codes.FailedPrecondition, container(noWish, asked))
		if st := running.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the running program is %s", st.GetState())
		}
		policy("rules: x")
		n.Stop()
		n.Launch()
		if ws := n.Died(); ws.ExitStatus() == 0 || !strings.Contains(n.LogTail(4000), "engine.grants_policy: grants policy "+file+": line 1, column 1") {
			t.Errorf("an agent with a broken policy ended with %d: %s", ws.ExitStatus(), n.LogTail(4000))
		}
		check := exec.CommandContext(t.Context(), filepath.Join(nodetest.Bin(t), "longshore"), "config", "check", "--config", filepath.Join(n.Dir, "config.toml"))
		if out, err := check.CombinedOutput(); err == nil || !strings.Contains(string(out), "line 1, column 1") {
			t.Errorf("config check: %v: %s", err, out)
		}
		policy(everything)
		n.Up()
		if st := running.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the running program is %s after the restart", st.GetState())
		}
		pod.Remove(t)
		n.Check()
	})
}

// TestTheCommandLineGrants: a label of `longshore run` is the document of its program, and an image's wish makes its program a granted one.
func TestTheCommandLineGrants(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		busybox := imagetest.NewRegistry(t).Push("busybox", "latest", built)
		run := func(args ...string) string {
			t.Helper()
			out, err := n.CLI(append([]string{"run"}, args...)...)
			if err == nil {
				t.Errorf("%v: it ended with 0: %q", args, out)
			}
			return out
		}
		label := core.GrantAnnotation + "={greeting: hello}"
		if out := run("--rm", "--label", label, busybox, "sh", "-c", nodetest.GrantedScript); out != "argument {\"greeting\":\"hello\"}\nroot /*\nline \n" {
			t.Errorf("with a label: %q", out)
		}
		if out := run("--rm", busybox, "sh", "-c", nodetest.GrantedScript); !strings.Contains(out, "argument \nroot /bin") {
			t.Errorf("an ordinary container: %q", out)
		}
		if _, err := n.CLI("run", "-d", "--name", "example", "--label", core.GrantAnnotation+"="+nodetest.Example(t), busybox, "sh", "-c", nodetest.ExampleScript); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the example runs", func() bool {
			out, _ := n.CLI("logs", "example")
			return out == nodetest.ExampleSays+"given log\n"
		})
		if out, err := n.CLI("stop", "--time", "600", "example"); err != nil {
			t.Errorf("stop: %v %s", err, out)
		}
		// It can be started again: its grants are decided again.
		if out, err := n.CLI("start", "example"); err != nil {
			t.Errorf("start again: %v %s", err, out)
		}
		nodetest.Eventually(t, "it runs again", func() bool {
			out, _ := n.CLI("logs", "example")
			return strings.Count(out, nodetest.ExampleSays) == 2
		})
		if out, err := n.CLI("inspect", "example"); err != nil || !strings.Contains(out, `"grant": "!listen {tcp: 8080}"`) {
			t.Errorf("inspect: %v %s", err, out)
		}
		if out, err := n.CLI("stop", "--time", "600", "example"); err != nil {
			t.Errorf("stop: %v %s", err, out)
		}
		if out, err := n.CLI("inspect", "--format", "{{.State.ExitCode}}", "example"); err != nil || strings.TrimSpace(out) != "5" {
			t.Errorf("it ended with %q: %v", out, err)
		}
		if _, err := n.CLI("rm", "example"); err != nil {
			t.Error(err)
		}
		n.Check()
	})
}

// TestAProgramIsAskedToStop: !shutdown replaces the signal, also after agent and keeper died; a deaf program is
// killed after the grace period. A secret is read as it was delivered, and cannot be changed.
func TestAProgramIsAskedToStop(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := grantedImage(t, n)
		pod := n.RunPod(t, n.PodConfig("stop"))
		runs := func(name, document string) *nodetest.Container {
			t.Helper()
			c := pod.Run(t, granted(name, image, document))
			nodetest.Eventually(t, name+" runs", func() bool { return strings.Contains(c.ReadLog(t), "it runs") })
			return c
		}
		stop := func(c *nodetest.Container, grace time.Duration, code int32, said string) {
			t.Helper()
			_, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: int64(grace / time.Second)})
			if st := c.Status(t); err != nil || st.GetExitCode() != code || !strings.Contains(c.ReadLog(t), said) {
				t.Errorf("it ended with %d, error %v, log %s", st.GetExitCode(), err, c.ReadLog(t))
			}
		}
		polite, deaf := runs("polite", "{shutdown: !shutdown }"), runs("deaf", "{shutdown: !shutdown , greeting: deaf}")
		n.Kill()
		n.KillKeeper()
		n.Up()
		if st := polite.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("it is %s: %s", st.GetState(), polite.ReadLog(t))
		}
		stop(polite, 10*time.Minute, 5, "asked to stop: 0 <nil>")
		stop(deaf, time.Second, 137, "asked to stop: 0 <nil>")
		plain := granted("plain", image, "{listen: !listen {tcp: 8080}}")
		c := pod.Run(t, plain)
		_, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 0})
		if st := c.Status(t); err != nil || st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			t.Errorf("%s: %v", st.GetState(), err)
		}

		// As kubelet lays a secret out: its files are links, which change together.
		volume := filepath.Join(t.TempDir(), "volumes", "kubernetes.io~secret", "credentials")
		version := filepath.Join(volume, "..2026")
		if err := os.MkdirAll(version, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]os.FileMode{"password": 0o644, "private": 0o400} {
			if err := os.WriteFile(filepath.Join(version, name), []byte("open sesame"), mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("..data/"+name, filepath.Join(volume, name)); err != nil {
				t.Fatal(err)
			}
		}
		for link, to := range map[string]string{"..data": "..2026", "out": "../../../../../../../../etc/passwd", "none": "/nowhere"} {
			if err := os.Symlink(to, filepath.Join(volume, link)); err != nil {
				t.Fatal(err)
			}
		}
		plainDir := t.TempDir()
		if err := os.WriteFile(filepath.Join(plainDir, "password"), []byte("of nobody"), 0o600); err != nil {
			t.Fatal(err)
		}
		mounts := []*runtimeapi.Mount{{ContainerPath: "/etc/credentials", HostPath: volume, Readonly: true}, {ContainerPath: "/plain", HostPath: plainDir, Readonly: true}}
		for name, document := range map[string]string{"name": "{secret: !secret password}", "path": "{secret: !secret /etc/credentials/password}"} {
			c := pod.Run(t, granted("by-"+name, image, document, mounts...))
			if st := c.WaitExited(t); st.GetExitCode() != 0 || !strings.Contains(c.ReadLog(t), `secret "open sesame" <nil>`) || !strings.Contains(c.ReadLog(t), "write: operation not permitted") && !strings.Contains(c.ReadLog(t), "write: bad file descriptor") {
				t.Errorf("%s: %d %s", name, st.GetExitCode(), c.ReadLog(t))
			}
		}
		for name, text := range map[string]string{
			"out": `unknown secret "out"`, "none": `unknown secret "none"`, "../credentials/password": "unknown secret", "/plain/password": "unknown secret", "..2026": "it is no regular file",
			"private": "the container's user may not read it",
		} {
			cfg := granted("no-"+strings.ReplaceAll(name, "/", "-"), image, "{secret: !secret "+name+"}", mounts...)
			cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{RunAsUser: &runtimeapi.Int64Value{Value: 1000}}
			_, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config})
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "line 1, column 10") {
				t.Errorf("secret %s: %v", name, err)
			}
		}
		pod.Remove(t)
		n.Check()
	})
}
