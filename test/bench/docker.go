package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
	"github.com/longshore/longshore/test/dockerd"
)

const (
	dockerRuns   = 12 // of docker run in each round
	dockerFleet  = 50
	dockerBurst  = 10 // requests at once
	dockerListed = 500
	dockerRounds = 3
)

// The names of the measurements of Docker's API.
const (
	dockerRun    = "docker run"
	dockerStart  = "start of containers over Docker's API"
	dockerRemove = "removal of containers over Docker's API"
	dockerMemory = "memory beside a container of Docker's API"
	dockerList   = "list of containers over Docker's API"
)

// docker measures our Docker's API beside dockerd, by the same command line and the same requests. LONGSHORE_DOCKER_DIR names
// dockerd's unpacked packages, and without it nothing is measured. The agent serves the CRI no more afterwards.
func (b *bench) docker(ctx context.Context) error {
	packages := os.Getenv(dockerd.DirEnv)
	if !b.ours() || packages == "" {
		return nil
	}
	home := filepath.Join(machine.Dir(), "docker")
	d, err := dockerd.Start(dockerd.Options{
		Packages: packages, Home: home, Wrap: b.server.Account.Command,
		Flags: []string{"--storage-driver", "overlay2", "--bip", "10.98.0.1/16", "--cgroup-parent", machine.Pods() + "/docker"},
	})
	if err != nil {
		return err
	}
	defer d.Stop()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = d.Answers(starting)
	if err == nil {
		err = b.server.Extend(ctx, "[face.docker]\nenabled = true\n[face.cri]\nenabled = false\n")
	}
	if err != nil {
		return fmt.Errorf("docker: %w\n%s", err, d.LogTail())
	}
	s := &dockerBench{b: b, cli: dockerd.CLI(packages), all: map[string]samples{server.Longshore: {}, dockerWorker: {}}, sides: []*dockerSide{
		newDockerSide(server.Longshore, filepath.Join(b.server.State, "docker.sock"), func(name, _ string) bool {
			return name == "longshore" || name == "longshore-keeper" || name == "longshore-nest"
		}),
		newDockerSide(dockerWorker, filepath.Join(home, "sock"), func(_, args string) bool { return strings.Contains(args, home) }), // and containerd, shims
	}}
	if err := s.measure(ctx); err != nil {
		return errors.Join(fmt.Errorf("docker: %w\n%s", err, d.LogTail()), dockerd.RemoveHome(home))
	}
	d.Stop()
	return dockerd.RemoveHome(home)
}

// dockerSide is a daemon that answers Docker's API.
type dockerSide struct {
	name, socket string
	http         http.Client
	// counts reports whether a process is the daemon's, and not a container's.
	counts func(name, args string) bool
}

func newDockerSide(name, socket string, counts func(name, args string) bool) *dockerSide {
	s := &dockerSide{name: name, socket: socket, counts: counts}
	s.http.Transport = &http.Transport{MaxIdleConnsPerHost: dockerBurst, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	return s
}

// ask sends a request and reads the whole answer. Statuses of 400 and above are errors.
func (s *dockerSide) ask(ctx context.Context, method, path, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s: %s %s: %s %s", s.name, method, path, resp.Status, out)
	}
	return out, err
}

// each does something for n containers, some at once, and returns how long all took.
func each(n int, do func(i int) error) (time.Duration, error) {
	began := time.Now()
	work, errs := make(chan int), make([]error, dockerBurst)
	var workers sync.WaitGroup
	for w := range dockerBurst {
		workers.Go(func() {
			for i := range work {
				errs[w] = errors.Join(errs[w], do(i))
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	workers.Wait()
	return time.Since(began), errors.Join(errs...)
}

type dockerBench struct {
	b     *bench
	cli   []string
	sides []*dockerSide
	all   map[string]samples
}

func (d *dockerBench) keep(s *dockerSide, name string, v float64) {
	d.all[s.name][name] = append(d.all[s.name][name], v)
}

// run runs a container by the command line.
func (d *dockerBench) run(ctx context.Context, s *dockerSide) (time.Duration, error) {
	args := append(append([]string{}, d.cli[1:]...), "run", "--rm", d.b.image, "/bin/true")
	cmd := exec.CommandContext(ctx, d.cli[0], args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+s.socket)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s: docker run: %w: %s", s.name, err, stderr.String())
	}
	return time.Since(began), nil
}

// create creates a container and returns its id.
func (d *dockerBench) create(ctx context.Context, s *dockerSide) (string, error) {
	out, err := s.ask(ctx, http.MethodPost, "/containers/create", fmt.Sprintf(`{"Image":%q,"Cmd":["/bin/sleep","3600"],"StopSignal":"SIGKILL"}`, d.b.image))
	if err != nil {
		return "", err
	}
	var made struct {
		ID string `json:"Id"`
	}
	err = json.Unmarshal(out, &made)
	return made.ID, err
}

// measure has both daemons do the same, in turns.
func (d *dockerBench) measure(ctx context.Context) error {
	for _, s := range d.sides {
		err := eventually(ctx, 20*time.Millisecond, s.name, func() (bool, error) {
			_, err := s.ask(ctx, http.MethodGet, "/_ping", "")
			return err == nil, nil
		})
		if err != nil {
			return err
		}
		if _, err := s.ask(ctx, http.MethodPost, "/images/create?fromImage="+d.b.image, ""); err != nil {
			return err
		}
		for range warmUp {
			if _, err := d.run(ctx, s); err != nil {
				return err
			}
		}
	}
	for round := range dockerRounds {
		for turn := range d.sides {
			if err := d.round(ctx, d.sides[(round+turn)%len(d.sides)]); err != nil {
				return err
			}
		}
	}
	for _, s := range d.sides {
		if err := d.lists(ctx, s); err != nil {
			return err
		}
	}
	fmt.Printf("%-34s %10s %10s %10s %10s\n", "Docker's API", server.Longshore, dockerWorker, "ratio", "wanted")
	for _, l := range []comparison{
		{label: "docker run --rm true, ms", name: dockerRun, at: 0.5, wanted: 1. / 4},
		{label: fmt.Sprintf("%d containers, last runs, ms", dockerFleet), name: dockerStart, at: 0.5, wanted: 1. / 3},
		{label: fmt.Sprintf("%d containers, last gone, ms", dockerFleet), name: dockerRemove, at: 0.5},
		{label: "memory beside a container, KB PSS", name: dockerMemory, at: 0.5, wanted: 1. / 10},
		{label: fmt.Sprintf("list of %d containers, ms", dockerListed), name: dockerList, at: 0.5, wanted: 1},
	} {
		fmt.Println(l.format(d.all, []string{dockerWorker}))
	}
	return nil
}

// round runs containers one after the other by the command line, and then a fleet of them.
func (d *dockerBench) round(ctx context.Context, s *dockerSide) error {
	for range dockerRuns {
		took, err := d.run(ctx, s)
		if err != nil {
			return err
		}
		d.keep(s, dockerRun, ms(took))
	}
	idle := settled(ctx, func() int64 { return sum(machine.Memory(s.counts)) })
	ids := make([]string, dockerFleet)
	took, err := each(dockerFleet, func(i int) (err error) {
		if ids[i], err = d.create(ctx, s); err == nil {
			_, err = s.ask(ctx, http.MethodPost, "/containers/"+ids[i]+"/start", "")
		}
		return err
	})
	if err != nil {
		return err
	}
	d.keep(s, dockerStart, ms(took))
	full := settled(ctx, func() int64 { return sum(machine.Memory(s.counts)) })
	d.keep(s, dockerMemory, float64(full-idle)/1024/dockerFleet)
	took, err = each(dockerFleet, func(i int) error {
		_, err := s.ask(ctx, http.MethodDelete, "/containers/"+ids[i]+"?force=1", "")
		return err
	})
	d.keep(s, dockerRemove, ms(took))
	return err
}

// lists lists many containers that were created and not started.
func (d *dockerBench) lists(ctx context.Context, s *dockerSide) error {
	ids := make([]string, dockerListed)
	_, err := each(dockerListed, func(i int) (err error) {
		ids[i], err = d.create(ctx, s)
		return err
	})
	for i := 0; i < 3*dockerRuns && err == nil; i++ {
		began := time.Now()
		_, err = s.ask(ctx, http.MethodGet, "/containers/json?all=1", "")
		d.keep(s, dockerList, ms(time.Since(began)))
	}
	if err != nil {
		return err
	}
	_, err = each(dockerListed, func(i int) error {
		_, err := s.ask(ctx, http.MethodDelete, "/containers/"+ids[i]+"?force=1", "")
		return err
	})
	return err
}
