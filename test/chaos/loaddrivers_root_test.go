package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// unixTransport connects to a socket, for each request again.
func unixTransport(socket string) http.RoundTripper {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
}

// byCRI makes containers of the matrix's pod.
type byCRI struct {
	byCLI
	ids map[string]*nodetest.Container
}

func (d *byCRI) start(name, script string) error {
	cfg := nodetest.ContainerConfig(name, d.image, "/bin/sh", "-c", script)
	r, err := d.m.n.CRI.CreateContainer(d.m.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: d.m.pod.ID, Config: cfg, SandboxConfig: d.m.pod.Config})
	if err != nil {
		return err
	}
	d.ids[name] = d.m.pod.Container(r.GetContainerId(), cfg)
	_, err = d.m.n.CRI.StartContainer(d.m.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: r.GetContainerId()})
	return err
}

func (d *byCRI) ended(name string) int { return int(d.ids[name].WaitExited(d.m.t).GetExitCode()) }

func (d *byCRI) exec(name, script string) (int, error) {
	r, err := d.m.n.CRI.ExecSync(d.m.t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: d.ids[name].ID, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 60})
	return int(r.GetExitCode()), err
}

func (d *byCRI) stop(name string) error {
	_, err := d.m.n.CRI.StopContainer(d.m.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: d.ids[name].ID, Timeout: 60})
	return err
}

func (d *byCRI) remove(name string) {
	if _, err := d.m.n.CRI.RemoveContainer(d.m.t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: d.ids[name].ID}); err != nil {
		d.m.t.Error(err)
	}
}

// byDocker posts requests of Docker's API.
type byDocker struct {
	byCLI
	image string
	http  http.Client
}

// call makes a request, and decodes the answer.
func (d *byDocker) call(method, path string, body, answer any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(d.m.t.Context(), method, "http://docker/v1.44"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := d.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = got.Body.Close() }()
	all, err := io.ReadAll(got.Body)
	switch {
	case err != nil:
		return err
	case got.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("%s %s: %s %s", method, path, got.Status, all)
	case answer != nil:
		return json.Unmarshal(all, answer)
	}
	return nil
}

func (d *byDocker) start(name, script string) error {
	if err := d.call("POST", "/images/create?fromImage="+d.image, nil, nil); err != nil {
		return err
	}
	const tenth = 100_000_000 // of a second
	if err := d.call("POST", "/containers/create?name="+name, object{
		"Image": d.image, "Cmd": []string{"sh", "-c", script},
		"Healthcheck": object{"Test": []string{"CMD-SHELL", "true"}, "Interval": 10 * tenth, "Timeout": 600 * tenth, "Retries": 1},
		"HostConfig":  object{"LogConfig": object{"Type": "json-file", "Config": object{"max-size": "100g"}}},
	}, nil); err != nil {
		return err
	}
	return d.call("POST", "/containers/"+name+"/start", nil, nil)
}

func (d *byDocker) ended(name string) int {
	var end struct{ StatusCode int }
	if err := d.call("POST", "/containers/"+name+"/wait", nil, &end); err != nil {
		d.m.t.Error(err)
	}
	return end.StatusCode
}

// exec runs a program, and waits for the end of its output.
func (d *byDocker) exec(name, script string) (int, error) {
	var made struct{ Id string } //nolint:revive // as in the protocol
	if err := d.call("POST", "/containers/"+name+"/exec", object{"AttachStdout": true, "Cmd": []string{"sh", "-c", script}}, &made); err != nil {
		return 0, err
	}
	if err := d.call("POST", "/exec/"+made.Id+"/start", object{}, nil); err != nil {
		return 0, err
	}
	var end struct {
		Running  bool
		ExitCode *int
	}
	if err := d.call("GET", "/exec/"+made.Id+"/json", nil, &end); err != nil {
		return 0, err
	}
	if end.Running || end.ExitCode == nil {
		return 0, errors.New("the exec has no end")
	}
	return *end.ExitCode, nil
}

func (d *byDocker) stop(name string) error {
	return d.call("POST", "/containers/"+name+"/stop?t=60", nil, nil)
}

func (d *byDocker) remove(name string) {
	if err := d.call("DELETE", "/containers/"+name, nil, nil); err != nil {
		d.m.t.Error(err)
	}
}

// healthy asserts that no health check has failed.
func (u *upgrades) healthy() {
	u.t.Helper()
	for _, k := range u.tasks {
		if k.owner != "docker" {
			continue
		}
		var c struct {
			RestartCount int
			State        struct {
				Health struct {
					Status        string
					FailingStreak int
				}
			}
		}
		var err error
		roottest.Eventually(u.t, "the first health check of "+k.name+" has ended", func() bool {
			err = u.docker.call("GET", "/containers/"+k.name+"/json", nil, &c)
			return err != nil || c.State.Health.Status != "starting"
		})
		if err != nil || c.RestartCount != 0 || c.State.Health.FailingStreak != 0 || c.State.Health.Status != "healthy" {
			u.t.Errorf("%s: %+v, %v", k.name, c, err)
		}
	}
}

// fresh is the name of an image that the node does not have.
func (u *upgrades) fresh() string { return u.images[int(u.pulls.Add(1))%len(u.images)] }

// served are the names of small images in a registry.
func served(t *testing.T) (names []string) {
	t.Helper()
	r := imagetest.NewRegistry(t)
	for i := range 4 {
		content := bytes.Repeat([]byte{byte(i), 1, 2, 3}, 1<<18)
		names = append(names, r.Push(fmt.Sprintf("small%d", i), "1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "f", Body: content, Mode: 0o644}}}}.Build()))
	}
	return names
}
