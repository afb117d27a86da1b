package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
	"github.com/longshore/longshore/test/bench/machine"
)

// The work of the sleepers, and the targets.
const (
	sleeperMiB    = 256
	sleeperCycles = 20 // of each, at most
	sleeperAwake  = 10 // requests before each sleep

	wantedGiven = 0.9
	wantedHalf  = 50 * time.Millisecond // of the first answers, p50
	wantedMost  = 150 * time.Millisecond
)

// ofSleep has programs sleep, and wakes each by a request on a connection that it had before. It measures how much of their private
// anonymous memory is free, and the time until the answer beside that of the same request while the program is awake.
func ofSleep(ctx context.Context, b *bench) error {
	if !b.ours() {
		return nil
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(b.server.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	only := os.Getenv("SLEEPERS") // names, with commas
	for _, p := range sleeptest.Programs() {
		if only != "" && !slices.Contains(strings.Split(only, ","), p.Name) {
			continue
		}
		s := &sleeper{b: b, p: p, api: longshorev1.NewContainersClient(conn), dir: filepath.Join(machine.Dir(), "sleep", p.Name)}
		err := s.measure(ctx)
		if errors.Is(err, sleeptest.ErrMissing) {
			fmt.Printf("%-28s not measured: %v\n", "sleep: "+p.Name, err)
		} else if err != nil {
			return fmt.Errorf("sleep of %s: %w", p.Name, err)
		}
	}
	return nil
}

// sleeper is a container that sleeps.
type sleeper struct {
	b   *bench
	p   sleeptest.Program
	api longshorev1.ContainersClient
	dir string
}

func (s *sleeper) cli(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.b.server.Bin, "longshore"), args...)
	cmd.Env = append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(s.b.server.State, "control.sock"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("longshore %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (s *sleeper) inspect(ctx context.Context) (*longshorev1.Container, error) {
	resp, err := s.api.ListContainers(ctx, &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		return nil, err
	}
	for _, c := range resp.GetContainers() {
		if c.GetName() == s.p.Name {
			return c, nil
		}
	}
	return nil, errors.New("there is no such container")
}

// start starts the container, with the programs of this machine, and connects to it.
func (s *sleeper) start(ctx context.Context) (sleeptest.Client, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv, err := s.p.Argv(sleeptest.Launch{Self: self, Dir: s.dir, Addr: "0.0.0.0:8080", MiB: sleeperMiB})
	if err != nil {
		return nil, err
	}
	run := []string{"run", "-d", "--name", s.p.Name, "-v", s.dir + ":" + s.dir}
	java, _ := filepath.Glob("/etc/java-*") // the pattern is right
	for _, path := range append([]string{"/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/passwd", "/etc/group", self, os.Getenv(sleeptest.DirEnv)}, java...) {
		if _, err := os.Stat(path); err == nil && path != "" {
			run = append(run, "-v", path+":"+path+":ro")
		}
	}
	if err := s.cli(ctx, append(append(run, s.b.image), argv...)...); err != nil {
		return nil, err
	}
	var client sleeptest.Client
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = eventually(ctx, 100*time.Millisecond, "an answer", func() (bool, error) {
		c, err := s.inspect(ctx)
		if err != nil || c.GetState() != "running" || len(c.GetAddresses()) == 0 {
			return false, errors.Join(err, stopped(c))
		}
		client, err = s.p.Connect(ctx, c.GetAddresses()[0]+":8080", sleeperMiB)
		return err == nil, nil
	})
	return client, err
}

func stopped(c *longshorev1.Container) error {
	if c.GetState() == "exited" {
		return fmt.Errorf("it has ended: %v", c.GetAutopsy())
	}
	return nil
}

// anonymous returns the private anonymous memory of all processes of a container.
func anonymous(c *longshorev1.Container) (n uint64, err error) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.GetPid()))
	if err != nil {
		return 0, err
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		if other, err := os.Readlink(path); err != nil || other != space {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err != nil {
			return 0, err
		}
		bytes, err := sleeptest.Anonymous(pid)
		if err != nil {
			return 0, err
		}
		n += bytes
	}
	return n, nil
}

// slept are the figures of a program.
type slept struct {
	given         []float64 // shares
	awake, asleep []time.Duration
	faults        uint64
	took, back    time.Duration
}

func (s *sleeper) measure(ctx context.Context) error {
	client, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	sum, err := client.Sum(ctx)
	if err != nil {
		return err
	}
	var f slept
	for range min(sleeperCycles, s.b.pods) {
		if err := s.cycle(ctx, client, &f); err != nil {
			return err
		}
		if got, err := client.Sum(ctx); err != nil || got != sum {
			return fmt.Errorf("the content has the sum %s, want %s: %w", got, sum, err)
		}
	}
	if err := s.cli(ctx, "rm", "-f", s.p.Name); err != nil {
		return err
	}
	n := len(f.asleep)
	share := samples{"": f.given}.at("", 0)
	fmt.Printf("%-28s %8.3f of its memory is free at least (%.1f wanted), %s to sleep, %d faults and %s until all is back, on average of %d sleeps\n",
		"sleep: "+s.p.Name, share, wantedGiven, (f.took / time.Duration(n)).Round(time.Millisecond), f.faults/uint64(n), (f.back / time.Duration(n)).Round(time.Millisecond), n)
	s.b.keep("sleep: "+s.p.Name+": share", f.given...)
	s.b.row("", "  an answer, awake", f.awake)
	s.b.row("sleep: "+s.p.Name, "  the first answer", f.asleep)
	all := samples{"": millis(f.asleep)}
	if share < wantedGiven || all.at("", 0.5) > ms(wantedHalf) || all.at("", 0.99) > ms(wantedMost) {
		fmt.Printf("%-28s wanted: %.0f ms p50, %.0f ms p99\n", "  NOT AS WANTED", ms(wantedHalf), ms(wantedMost))
	}
	return nil
}

// cycle is a sleep and the wake from it by a request.
func (s *sleeper) cycle(ctx context.Context, client sleeptest.Client, f *slept) error {
	for range sleeperAwake {
		t := time.Now()
		if err := client.One(ctx); err != nil {
			return err
		}
		f.awake = append(f.awake, time.Since(t))
	}
	c, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	before, err := anonymous(c)
	if err != nil {
		return err
	}
	t := time.Now()
	if _, err := s.api.Sleep(ctx, &longshorev1.SleepRequest{Name: s.p.Name}); err != nil {
		return err
	}
	f.took += time.Since(t)
	after, err := anonymous(c)
	if err != nil {
		return err
	}
	f.given = append(f.given, 1-float64(after)/float64(before))
	t = time.Now()
	if err := client.One(ctx); err != nil {
		return err
	}
	f.asleep = append(f.asleep, time.Since(t))
	return eventually(ctx, 10*time.Millisecond, "the end of the wake", func() (bool, error) {
		c, err := s.inspect(ctx)
		if err != nil || c.GetState() != "running" || c.GetRest().GetPhase() != "" {
			return false, errors.Join(err, stopped(c))
		}
		f.faults += c.GetRest().GetFaults()
		f.back += c.GetRest().GetBack().AsDuration()
		return true, nil
	})
}
