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
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// userFaces makes containers by each face.
type userFaces struct {
	t       *testing.T
	n       *nodetest.Node
	image   string
	pod     *nodetest.Pod
	manager *swarmtest.Manager
	nomad   *nomadtest.Client
	mesos   http.Client
	execs   int
	bridged bool // tasks of Nomad and Mesos get a network of their own
}

// made is a container of a user, and how its face runs programs in it; own is nil if the face has no
// call for it. None of these calls names a user: Mesos' is refused if it does.
type made struct {
	key string
	own func(as, script string) (string, error)
}

// TestAnExecHasItsOwnUsersRightsByEachFace: face of the container, its user, no_new_privs, user of the
// exec, by the command line and by the face's own call.
func TestAnExecHasItsOwnUsersRightsByEachFace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		f := newUserFaces(t)
		for face, start := range map[string]func(name, user string, nnp bool) made{"cli": f.byCLI, "cri": f.byCRI, "swarm": f.bySwarm, "nomad": f.byNomad, "mesos": f.byMesos} {
			for _, user := range []string{"0", "33"} {
				for _, nnp := range []bool{false, true} {
					if nnp && face == "mesos" {
						continue // it has no such request
					}
					name := fmt.Sprintf("%s%s%v", face, user, nnp)
					c := start(name, user, nnp)
					id := f.id(c.key)
					nodetest.CheckExecUsers(t, face, user, nnp, nodetest.ExecUsers, func(as, script string) (string, error) {
						args := []string{"exec", "--force"}
						if as != "" {
							args = append(args, "-u", as)
						}
						return f.n.CLI(append(args, id, "/bin/sh", "-c", script)...)
					})
					if c.own != nil {
						nodetest.CheckExecUsers(t, face+"'s own exec", user, nnp, []string{""}, c.own)
					}
				}
			}
		}
	})
}

func newUserFaces(t *testing.T) *userFaces {
	t.Helper()
	return newUserFacesWith(t, "")
}

// newUserFacesWith starts a node with more of its configuration, which begins in the section [engine].
func newUserFacesWith(t *testing.T, more string) *userFaces {
	t.Helper()
	return newUserFacesAt(t, "", more)
}

// newUserFacesAt is newUserFacesWith in a directory of the caller's, unless that is "".
func newUserFacesAt(t *testing.T, dir, more string) *userFaces {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Dir: dir, Config: more + "[face.swarm]\nenabled = true\n[face.mesos]\nenabled = true\n"})
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	f := &userFaces{t: t, n: n, image: imagetest.NewRegistry(t).Push("busybox", "users", built), manager: swarmtest.New(t)}
	if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: f.image}}); err != nil {
		t.Fatal(err)
	}
	f.pod = n.RunPod(t, n.PodConfig("users"))
	if _, err := n.CLI("swarm", "join", f.manager.Addr, "--token", f.manager.Token); err != nil {
		t.Fatal(err)
	}
	f.nomad = nomadtest.Plugin(t, filepath.Join(nodetest.Bin(t), "longshore"))
	f.nomad.Configure(t, map[string]any{"socket": filepath.Join(n.State, "nomad.sock")}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	f.mesos.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.State, "mesos.sock"))
	}}
	return f
}

// id waits until the container of a key runs.
func (f *userFaces) id(key string) (id string) {
	f.t.Helper()
	roottest.Eventually(f.t, "the container of "+key+" runs", func() bool {
		for k, c := range f.n.Running() {
			if strings.Contains(k, key) {
				id, _, _ = strings.Cut(c, ",")
				return true
			}
		}
		return false
	})
	return id
}

func (f *userFaces) byCLI(name, user string, nnp bool) made {
	f.t.Helper()
	args := []string{"run", "-d", "--name", name, "-u", user}
	if !nnp {
		args = append(args, "--new-privileges")
	}
	if _, err := f.n.CLI(append(args, f.image, "sleep", "1000")...); err != nil {
		f.t.Fatal(err)
	}
	return made{key: name}
}

func (f *userFaces) byCRI(name, user string, nnp bool) made {
	f.t.Helper()
	uid, err := strconv.ParseInt(user, 10, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	cfg := nodetest.ContainerConfig(name, f.image, "/bin/sleep", "1000")
	cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{RunAsUser: &runtimeapi.Int64Value{Value: uid}, NoNewPrivs: nnp}
	c := f.pod.Run(f.t, cfg)
	return made{name, func(_, script string) (string, error) {
		r, err := f.n.CRI.ExecSync(f.t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 20})
		return string(r.GetStdout()), err
	}}
}

func (f *userFaces) bySwarm(name, user string, nnp bool) made {
	task := swarmtest.Task(name, f.image, "sleep", "1000")
	c := task.GetSpec().GetContainer()
	c.User, c.Privileges = user, &swarmv1.Privileges{NoNewPrivileges: nnp}
	f.manager.Assign(task)
	return made{key: name}
}

func (f *userFaces) byNomad(name, user string, nnp bool) made {
	f.t.Helper()
	const alloc = "5f0f0c4e-8d5c-4f3d-9a5d-000000000017"
	dir := filepath.Join(f.n.Dir, "alloc")
	for _, d := range []string{"alloc/logs", "alloc/data", name + "/local", name + "/secrets"} {
		if err := os.MkdirAll(filepath.Join(dir, alloc, d), 0o777); err != nil {
			f.t.Fatal(err)
		}
	}
	config := map[string]any{"image": f.image, "command": "/bin/sleep", "args": []string{"1000"}}
	if f.bridged {
		config["network_mode"] = "bridge"
	}
	if nnp {
		config["security_opt"] = []string{"no-new-privileges"}
	}
	task := nomadtest.Task(dir, alloc, name, "aaaaaaaa", config)
	task.User = user
	if _, err := f.nomad.Driver.StartTask(f.t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
		f.t.Fatal(err)
	}
	return made{name, func(_, script string) (string, error) {
		e, err := f.nomad.Driver.ExecTask(f.t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"/bin/sh", "-c", script}, Timeout: durationpb.New(roottest.Patience())})
		return string(e.GetStdout()), err
	}}
}

func (f *userFaces) byMesos(name, user string, _ bool) made {
	f.t.Helper()
	post := func(kind string, payload map[string]any) error {
		body, err := json.Marshal(map[string]any{"type": kind, strings.ToLower(kind): payload})
		if err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, "http://agent/api/v1", bytes.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := f.mesos.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s %q", kind, resp.Status, text)
		}
		return err
	}
	id := map[string]any{"value": name}
	image := map[string]any{"type": "DOCKER", "docker": map[string]any{"name": f.image}}
	info := map[string]any{"type": "MESOS", "mesos": map[string]any{"image": image}}
	if f.bridged {
		info["network_infos"] = []any{map[string]any{}}
	}
	if err := post("LAUNCH_CONTAINER", map[string]any{
		"container_id": id, "command": map[string]any{"value": "exec sleep 1000", "user": user}, "container": info,
	}); err != nil {
		f.t.Fatal(err)
	}
	return made{name, func(_, script string) (string, error) {
		f.execs++
		nested := map[string]any{"value": fmt.Sprintf("x%d", f.execs), "parent": id}
		out := fmt.Sprintf("/tmp/out%d", f.execs)
		command := map[string]any{"value": "{ " + script + "; } >" + out}
		if err := post("LAUNCH_NESTED_CONTAINER_SESSION", map[string]any{"container_id": nested, "command": command}); err != nil {
			return "", err
		}
		return f.n.CLI("exec", "--force", f.id(name), "cat", out)
	}}
}
