package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/longshore/longshore/test/bench/machine"
)

const (
	nomadAddress = "http://127.0.0.1:4646"
	nomadTasks   = 50
	nomadRounds  = 5
)

// nomadDrivers are measured in turns, each after each other one, because the rest of one's work
// affects the next. The last does nothing: Nomad's own share.
var nomadDrivers = []struct {
	name, label string
	config      func(image string) map[string]any
}{
	{"longshore", "longshore", func(image string) map[string]any {
		return map[string]any{"image": image, "image_pull_policy": "missing", "command": "/bin/sleep", "args": []string{"3600"}}
	}},
	{"raw_exec", "raw_exec", func(string) map[string]any {
		return map[string]any{"command": "/bin/busybox", "args": []string{"sleep", "3600"}}
	}},
	{"mock_driver", "Nomad alone", func(string) map[string]any { return map[string]any{"run_for": "3600s"} }},
}

// nomad measures how fifty tasks of a real Nomad start and stop by our driver and by
// its own, in one run. NOMAD names its binary, and without it nothing is measured.
func (b *bench) nomad(ctx context.Context) error {
	binary := os.Getenv("NOMAD")
	if !b.ours() || binary == "" {
		return nil
	}
	n := &nomadBench{b: b, dir: filepath.Join(machine.Dir(), "nomad")}
	end, err := n.start(ctx, binary)
	if err != nil {
		return fmt.Errorf("nomad: %w", err)
	}
	err = n.measure(ctx)
	if err = errors.Join(err, end()); err != nil {
		log, _ := os.ReadFile(filepath.Join(n.dir, "log"))
		return fmt.Errorf("nomad: %w\n%s", err, log[max(0, len(log)-4000):])
	}
	return nil
}

// nomadBench is a Nomad that has our driver and its own.
type nomadBench struct {
	b   *bench
	dir string
}

// start returns when Nomad has its drivers, with the function that ends it.
func (n *nomadBench) start(ctx context.Context, binary string) (end func() error, err error) {
	plugins := filepath.Join(n.dir, "plugins")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join(n.b.server.Bin, "longshore"), filepath.Join(plugins, "driver")); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`
bind_addr = "127.0.0.1"
data_dir = %q
plugin_dir = %q
disable_update_check = true
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
client {
  network_interface = "lo"
  options = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault,cni" }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "driver" {
  config {
    socket = %q
  }
}
`, filepath.Join(n.dir, "data"), plugins, filepath.Join(n.b.server.State, "nomad.sock"))
	file := filepath.Join(n.dir, "nomad.hcl")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(n.dir, "log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "agent", "-dev", "-config", file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	end = func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		return errors.Join(log.Close(), machine.RemoveCgroups("nomad"), machine.RemoveCgroups("nomad.slice"))
	}
	err = n.until(ctx, "a healthy driver", func() (bool, error) {
		var nodes []struct {
			Drivers map[string]struct{ Healthy bool }
		}
		err := n.call(ctx, http.MethodGet, "/v1/nodes", nil, &nodes)
		return err == nil && len(nodes) == 1 && nodes[0].Drivers["longshore"].Healthy && nodes[0].Drivers["raw_exec"].Healthy, nil
	})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

func (n *nomadBench) measure(ctx context.Context) error {
	started, stopped := make([][]time.Duration, len(nomadDrivers)), make([][]time.Duration, len(nomadDrivers))
	for round := range nomadRounds {
		for turn := range nomadDrivers {
			i := (round + turn) % len(nomadDrivers)
			up, down, err := n.round(ctx, i, fmt.Sprintf("bench-%d-%d", round, i))
			if err != nil {
				return fmt.Errorf("%s: %w", nomadDrivers[i].name, err)
			}
			started[i], stopped[i] = append(started[i], up), append(stopped[i], down)
		}
	}
	for _, what := range []struct {
		label string
		took  [][]time.Duration
	}{{"start", started}, {"stop", stopped}} {
		fmt.Printf("%s of %d Nomad tasks\n", what.label, nomadTasks)
		for i, d := range nomadDrivers {
			n.b.row("", "  "+d.label, what.took[i])
		}
	}
	return nil
}

// round starts a job's tasks and stops them. It returns how long each took as Nomad
// tells it: from the job's submission to the start of the last task, and from the
// request to stop to the moment when nothing was left of the last.
func (n *nomadBench) round(ctx context.Context, driver int, job string) (up, down time.Duration, err error) {
	d := nomadDrivers[driver]
	task := map[string]any{
		"Name": "main", "Driver": d.name, "Config": d.config(n.b.image), "KillSignal": "SIGKILL",
		"Resources": map[string]any{"CPU": 1, "MemoryMB": 20},
	}
	group := map[string]any{"Name": "g", "Count": nomadTasks, "Tasks": []any{task}, "EphemeralDisk": map[string]any{"SizeMB": 150}}
	body := map[string]any{"Job": map[string]any{"ID": job, "Name": job, "Type": "service", "Datacenters": []string{"*"}, "TaskGroups": []any{group}}}
	began := time.Now()
	if err := n.call(ctx, http.MethodPut, "/v1/jobs", body, nil); err != nil {
		return 0, 0, err
	}
	last, err := n.all(ctx, job, "running")
	if err != nil {
		return 0, 0, err
	}
	up = last.Sub(began)
	began = time.Now()
	if err := n.call(ctx, http.MethodDelete, "/v1/job/"+job, nil, nil); err != nil {
		return 0, 0, err
	}
	if last, err = n.all(ctx, job, "complete"); err != nil {
		return 0, 0, err
	}
	down = last.Sub(began)
	if err := n.call(ctx, http.MethodDelete, "/v1/job/"+job+"?purge=true", nil, nil); err != nil {
		return 0, 0, err
	}
	return up, down, n.call(ctx, http.MethodPut, "/v1/system/gc", nil, nil)
}

// all waits until all of a job's tasks are in that state, and returns when the last one
// came to it.
func (n *nomadBench) all(ctx context.Context, job, status string) (last time.Time, err error) {
	err = n.until(ctx, "all tasks "+status, func() (bool, error) {
		var allocs []struct {
			ClientStatus string
			TaskStates   map[string]struct {
				State                 string
				StartedAt, FinishedAt time.Time
			}
		}
		if err := n.call(ctx, http.MethodGet, "/v1/job/"+job+"/allocations", nil, &allocs); err != nil {
			return false, err
		}
		there := 0
		for _, a := range allocs {
			if a.ClientStatus == "failed" {
				return false, fmt.Errorf("a task of %s failed", job)
			}
			at := a.TaskStates["main"].StartedAt
			if status == "complete" {
				at = a.TaskStates["main"].FinishedAt
			}
			if a.ClientStatus == status {
				there++
			}
			if at.After(last) {
				last = at
			}
		}
		return there == nomadTasks, nil
	})
	return last, err
}

// until asks until the answer is yes.
func (n *nomadBench) until(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return eventually(ctx, 100*time.Millisecond, what, ok)
}

// call asks Nomad's API.
func (n *nomadBench) call(ctx context.Context, method, path string, body, answer any) error {
	sent, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, nomadAddress+path, bytes.NewReader(sent))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(got)))
	case answer == nil:
		return nil
	}
	return json.Unmarshal(got, answer)
}
