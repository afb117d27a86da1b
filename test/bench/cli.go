package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
	"github.com/longshore/longshore/test/dockerd"
)

// How much the command lines do.
const (
	cliRuns   = 15
	cliExecs  = 3
	cliPulls  = 2
	cliOutput = 300_000_000 // bytes
	cliLayers = 6
	cliLayer  = 285 << 20 // bytes of a layer, unpacked: 1.7 GB together
)

// The command lines that ours is compared with.
const (
	podmanCLI = "podman"
	dockerCLI = "docker"
)

// The names of the measurements of the command lines.
const (
	cliRun    = "command line: run"
	cliExec   = "command line: exec"
	cliClient = "command line: client's CPU"
	cliPull   = "command line: pull"
)

// ofCLI measures common commands: run --rm, an exec with much output, and a pull of a large image,
// beside podman with crun where PODMAN names it, docker where LONGSHORE_DOCKER_DIR has its packages
// (for containerd's pull, too, unless CONTAINERD names one with ctr beside it).
func ofCLI(ctx context.Context, b *bench) error {
	if !b.ours() {
		return nil
	}
	c := &cliBench{b: b, home: filepath.Join(machine.Dir(), "cli"), all: map[string]samples{}}
	ours := tool{name: server.Longshore, command: func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(b.server.Bin, "longshore"), args...)
		cmd.Env = append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(b.server.State, "control.sock"))
		return cmd
	}}
	c.tools = []tool{ours}
	err := errors.Join(os.MkdirAll(c.home, 0o700), c.podman(), c.docker(ctx))
	if err == nil {
		err = c.runs(ctx)
	}
	if err == nil {
		err = c.execs(ctx)
	}
	for _, stop := range c.stops {
		stop()
	}
	if err == nil {
		err = c.pulls(ctx, ours)
	}
	if err = errors.Join(err, dockerd.RemoveHome(c.home)); err != nil {
		return fmt.Errorf("command lines: %w", err)
	}
	c.table()
	return nil
}

// tool is a command line.
type tool struct {
	name    string
	command func(ctx context.Context, args ...string) *exec.Cmd
	run     []string // further flags of run
	pull    []string // of pull
}

// do runs a command, and returns its duration and the client's CPU time. Its output goes to
// /dev/null.
func (t tool) do(ctx context.Context, args ...string) (took, used time.Duration, err error) {
	cmd := t.command(ctx, args...)
	var said strings.Builder
	cmd.Stderr = &said
	begun := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("%s %s: %w: %s", t.name, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return time.Since(begun), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// cliBench has the tools side by side, and the results of each.
type cliBench struct {
	b     *bench
	home  string
	tools []tool
	stops []func()
	all   map[string]samples
}

func (c *cliBench) keep(t tool, name string, v float64) {
	if c.all[t.name] == nil {
		c.all[t.name] = samples{}
	}
	c.all[t.name][name] = append(c.all[t.name][name], v)
}

// podman adds podman, on directories of its own.
func (c *cliBench) podman() error {
	program, err := exec.LookPath(os.Getenv("PODMAN"))
	if err != nil {
		fmt.Printf("%-28s not measured: PODMAN names none\n", podmanCLI)
		return nil //nolint:nilerr // said
	}
	crun, err := exec.LookPath("crun")
	if err != nil {
		fmt.Printf("%-28s not measured: crun is not installed\n", podmanCLI)
		return nil //nolint:nilerr // said
	}
	if err := machine.HideUnified(); err != nil {
		return err
	}
	at := filepath.Join(c.home, "podman")
	files := map[string]string{
		"engine":   fmt.Sprintf("[engine]\ncgroup_manager = \"cgroupfs\"\nruntime = \"crun\"\nevents_logger = \"file\"\n[engine.runtimes]\ncrun = [%q]\n[network]\nnetwork_config_dir = %q\n", crun, at+"/net"),
		"storage":  fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = %q\nrunroot = %q\n", at+"/root", at+"/run"),
		"policy":   `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"net/none": "",
	}
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(at, name)), 0o700), os.WriteFile(filepath.Join(at, name), []byte(text), 0o600)); err != nil {
			return err
		}
	}
	t := tool{
		name: podmanCLI, run: []string{"--cgroup-parent", machine.Pods() + "/podman"},
		pull: []string{"--tls-verify=false", "--signature-policy", at + "/policy"},
		command: func(ctx context.Context, args ...string) *exec.Cmd {
			cmd := exec.CommandContext(ctx, program, append([]string{"--log-level=error", "--tmpdir", at + "/tmp"}, args...)...)
			cmd.Env = append(os.Environ(), "HOME="+at, "CONTAINERS_CONF="+at+"/engine", "CONTAINERS_STORAGE_CONF="+at+"/storage")
			return cmd
		},
	}
	c.tools = append(c.tools, t)
	c.stops = append(c.stops, func() {
		_, _, _ = t.do(context.Background(), "rm", "--all", "--force", "--time", "0") // its directory goes in any case
	})
	return nil
}

// docker adds docker's command line, with a dockerd of its own.
func (c *cliBench) docker(ctx context.Context) error {
	packages := os.Getenv(dockerd.DirEnv)
	if packages == "" {
		fmt.Printf("%-28s not measured: %s names no directory\n", dockerCLI, dockerd.DirEnv)
		return nil
	}
	d, err := dockerd.Start(dockerd.Options{
		Packages: packages, Home: filepath.Join(c.home, "docker"), Wrap: c.b.server.Account.Command,
		Flags: []string{"--storage-driver", "overlay2", "--bip", "10.98.0.1/16", "--cgroup-parent", machine.Pods() + "/docker"},
	})
	if err != nil {
		return err
	}
	c.stops = append(c.stops, d.Stop)
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := d.Answers(starting); err != nil {
		if why := d.Lacks(); why != "" {
			fmt.Printf("%-28s not measured: %s\n", dockerCLI, why)
			return nil
		}
		return err
	}
	c.tools = append(c.tools, tool{name: dockerCLI, command: d.Command})
	return nil
}

// runs lets each tool in turn run a program that ends at once.
func (c *cliBench) runs(ctx context.Context) error {
	for _, t := range c.tools {
		if _, _, err := t.do(ctx, append(append([]string{"pull"}, t.pull...), c.b.image)...); err != nil {
			return err
		}
	}
	for i := range cliRuns + 1 {
		for turn := range c.tools {
			t := c.tools[(i+turn)%len(c.tools)]
			took, _, err := t.do(ctx, append(append([]string{"run", "--rm"}, t.run...), c.b.image, "true")...)
			if err != nil {
				return err
			}
			if i > 0 { // the first one pays for caches
				c.keep(t, cliRun, ms(took))
			}
		}
	}
	return nil
}

// execs has each tool in its turn pass on much output.
func (c *cliBench) execs(ctx context.Context) error {
	const name = "talker"
	for _, t := range c.tools {
		if _, _, err := t.do(ctx, append(append([]string{"run", "-d", "--name", name}, t.run...), c.b.image, "sleep", "3600")...); err != nil {
			return err
		}
	}
	for i := range cliExecs {
		for turn := range c.tools {
			t := c.tools[(i+turn)%len(c.tools)]
			took, used, err := t.do(ctx, "exec", name, "head", "-c", fmt.Sprint(cliOutput), "/dev/zero")
			if err != nil {
				return err
			}
			c.keep(t, cliExec, ms(took))
			c.keep(t, cliClient, ms(used))
		}
	}
	for _, t := range c.tools {
		if _, _, err := t.do(ctx, "rm", "-f", name); err != nil {
			return err
		}
	}
	return nil
}

// largeImage serves an image of cliLayers layers; half of them do not compress.
func largeImage() (name string, stop func(), err error) {
	images, r, err := server.ServeMore()
	if err != nil {
		return "", nil, err
	}
	random := rand.NewChaCha8([32]byte{1})
	var layers [][]imagetest.File
	for i := range cliLayers {
		body := make([]byte, cliLayer)
		for at := 0; at < len(body); at += 8 << 10 {
			_, _ = io.ReadFull(random, body[at:min(at+4<<10, len(body))]) // it never fails
		}
		var files []imagetest.File
		for n := 0; n*(1<<20) < len(body); n++ {
			files = append(files, imagetest.File{Name: fmt.Sprintf("data/%d/%d", i, n), Body: body[n<<20 : min((n+1)<<20, len(body))]})
		}
		layers = append(layers, files)
	}
	name = r.Push("large", "latest", imagetest.Image{Layers: layers}.Build())
	return name, images.Close, nil
}

// pulls has us and containerd pull the large image, in turns.
func (c *cliBench) pulls(ctx context.Context, ours tool) error {
	program := os.Getenv("CONTAINERD")
	if program == "" && os.Getenv(dockerd.DirEnv) != "" {
		program = filepath.Join(os.Getenv(dockerd.DirEnv), "usr/bin/containerd")
	}
	ctr := filepath.Join(filepath.Dir(program), "ctr")
	if _, err := os.Stat(ctr); program == "" || err != nil {
		fmt.Printf("%-28s not measured: CONTAINERD names no containerd with ctr beside it\n", "pull of a large image")
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(c.home, &st); err != nil {
		return err
	}
	if free := st.Bavail * uint64(st.Bsize); free < 8<<30 {
		fmt.Printf("%-28s not measured: %d GB are free, 8 are needed\n", "pull of a large image", free>>30)
		return nil
	}
	image, stop, err := largeImage()
	if err != nil {
		return err
	}
	defer stop()
	theirs, end, err := c.containerd(ctx, program, ctr)
	if err != nil {
		return err
	}
	defer end()
	type puller struct {
		tool
		gone [][]string
	}
	pullers := []puller{
		{ours, [][]string{{"rmi", image}, {"image", "prune", "--force"}}},
		{theirs, [][]string{{"images", "rm", "--sync", image}}},
	}
	for i := range cliPulls {
		for turn := range pullers {
			p := pullers[(i+turn)%len(pullers)]
			unix.Sync() // the writes of one tool must not delay the other
			took, _, err := p.do(ctx, append(append(strings.Fields("pull"), p.pull...), image)...)
			if err != nil {
				return err
			}
			c.keep(p.tool, cliPull, ms(took))
			for _, args := range p.gone {
				if _, _, err := p.do(ctx, args...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// containerd starts one without the CRI plugin, and returns its command line.
func (c *cliBench) containerd(ctx context.Context, program, ctr string) (t tool, end func(), err error) {
	at := filepath.Join(c.home, "containerd")
	config := filepath.Join(at, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n", at+"/root", at+"/state", at+"/sock")
	if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		return tool{}, nil, err
	}
	cmd := exec.Command(program, "--config", config) //nolint:forbidigo // it is ended by end
	log, err := os.Create(filepath.Join(at, "log"))
	if err != nil {
		return tool{}, nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return tool{}, nil, err
	}
	end = func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	}
	t = tool{name: server.Containerd, pull: []string{"--plain-http"}, command: func(ctx context.Context, args ...string) *exec.Cmd {
		if args[0] == "pull" {
			args = append([]string{"images"}, args...)
		}
		return exec.CommandContext(ctx, ctr, append([]string{"--address", at + "/sock"}, args...)...)
	}}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = eventually(starting, 100*time.Millisecond, "a containerd that answers", func() (bool, error) {
		_, _, err := t.do(starting, "version")
		return err == nil, nil
	})
	if err != nil {
		end()
		said, _ := os.ReadFile(log.Name())
		return tool{}, nil, fmt.Errorf("%w: %s", err, said[max(0, len(said)-2000):])
	}
	return t, end, nil
}

// table compares.
func (c *cliBench) table() {
	names := []string{podmanCLI, dockerCLI, server.Containerd}
	fmt.Printf("%-30s %10s %10s %10s %10s %10s %10s\n", "command lines", server.Longshore, names[0], names[1], names[2], "ratio", "wanted")
	for _, l := range []comparison{
		{label: "run --rm p50, ms", name: cliRun, at: 0.5, wanted: 1. / 5},
		{label: "exec of 300 MB, ms", name: cliExec, at: 0.5, wanted: 1},
		{label: "  its client's CPU, ms", name: cliClient, at: 0.5, wanted: 1},
		{label: "pull of 1.7 GB, ms", name: cliPull, at: 0.5, wanted: 1},
	} {
		if text := l.format(c.all, names); text != "" {
			fmt.Println(text)
		}
	}
}
