// Command bench measures a CRI v1 server as its clients see it: the durations of a pod's start, of
// execs and of its removal, the number of simultaneous starts, the cost of an idle pod, and the
// recovery after a SIGKILL.
//
// Without -socket it runs Longshore's own agent, from -bin, in namespaces of its
// own; with it, any server that listens there (then nothing is killed, and
// memory is that of the processes named by -pss). Where the environment names
// peers (CONTAINERD, CRIO; see package server), it runs ours and theirs one after
// the other and ends with a table of ratios.
//
// With NOMAD, the binary of a real Nomad, it measures our driver beside Nomad's own;
// with LONGSHORE_DOCKER_DIR, where dockerd is unpacked, our worker of a Swarm beside
// dockerd's, and in the step docker our Docker's API beside dockerd.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"google.golang.org/grpc"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
)

type options struct {
	as      string
	socket  string
	image   string // as users name it
	imageID string
	bin     string
	runtime string
	pods    int
	burst   int
	workers int
	rounds  int
	pss     string
	config  string
	steps   string
	samples string
	report  string
	quiet   bool
	nodes   string
}

func main() {
	if sleeptest.Main(os.Args) {
		return
	}
	beWorker()
	machine.Init()
	var o options
	flag.StringVar(&o.as, "server", "", "the one server to run: longshore, longshore+crun, containerd or cri-o; empty is ours, or all where the environment names peers")
	flag.StringVar(&o.socket, "socket", "", "CRI socket of a running server; empty runs one")
	flag.StringVar(&o.image, "image", "", "image for the containers, already pulled; only with -socket")
	flag.StringVar(&o.bin, "bin", "bin", "directory of longshore and longshore-keeper")
	flag.StringVar(&o.runtime, "runtime", "", "runtime handler; empty is the server's default")
	flag.IntVar(&o.pods, "n", 50, "pods started one after the other")
	flag.IntVar(&o.burst, "burst", 100, "pods started at once, and idle ones for memory")
	flag.IntVar(&o.workers, "workers", 10, "workers of the burst")
	flag.IntVar(&o.rounds, "rounds", 1, "how often each server has its turn when several are compared")
	flag.StringVar(&o.pss, "pss", "longshore,longshore-keeper,longshore-nest", "programs whose memory is counted with -socket, by file name")
	flag.StringVar(&o.config, "config", "", "more TOML for our own agent, which goes on in [engine]")
	flag.StringVar(&o.steps, "steps", "", "which of start, executions, exec, log, burst, durable, userns, traces, loops, many, bare, flat, floor, grants, guest, sleep, hub (alone), cli (make bench-cli), mesos, nomad (NOMAD is its binary), docker and swarm (LONGSHORE_DOCKER_DIR has dockerd), with commas; empty is all that fit")
	flag.StringVar(&o.samples, "samples", "", "file that gets all samples with commit and machine, as JSON")
	flag.StringVar(&o.report, "report", "", "document that gets the table of servers; only with peers")
	flag.BoolVar(&o.quiet, "quiet", false, "measure nothing if others use the machine's processors")
	differ := flag.Bool("differences", false, "measure nothing: print the medians of two files of -samples side by side")
	flag.StringVar(&o.nodes, "nodes", "100,1000,10000", "how many nodes the hub has, in the step hub; HUBSERVER and HUBSERVER_SWARMKIT are its programs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *differ && flag.NArg() == 2:
		err = differences(os.Stdout, flag.Arg(0), flag.Arg(1))
	case *differ:
		err = errors.New("-differences takes two files, the older one first")
	default:
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	peers := server.PeersOf(os.Getenv)
	switch {
	case o.steps == "hub":
		return ofHub(ctx, o.nodes)
	case o.socket != "":
		header("the server of " + o.socket)
		o.imageID = o.image
		return measure(ctx, o, nil)
	case machine.Inside():
		return withServer(ctx, o, peers)
	case o.as == "" && peers.Any():
		return compare(ctx, o, peers.Names())
	}
	return compare(ctx, o, []string{cmp.Or(o.as, server.Longshore)})
}

// withServer starts a server where nothing is yet, and measures it.
func withServer(ctx context.Context, o options, peers server.Peers) error {
	if o.as == "" {
		o.as = server.Longshore
	}
	header(o.as)
	if err := machine.Prepare(); err != nil {
		return err
	}
	images, err := server.ServeImages()
	if err != nil {
		return err
	}
	defer images.Close()
	s, err := server.New(o.as, server.Options{Dir: machine.Dir(), Bin: o.bin, Config: o.config, Images: images, Peers: peers})
	if err != nil {
		return err
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	defer s.Stop()
	o.socket, o.image = s.Socket, images.Busybox
	if o.imageID, err = pull(ctx, o); err == nil {
		err = measure(ctx, o, s)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, s.Log())
	}
	return nil
}

// pull waits for the server, has it pull the image, and returns the image's id.
func pull(ctx context.Context, o options) (string, error) {
	c, err := dial(o.socket)
	if err != nil {
		return "", err
	}
	if _, err := c.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		return "", fmt.Errorf("ask for the version: %w", err)
	}
	pulled, err := c.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: o.image}})
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", o.image, err)
	}
	return pulled.GetImageRef(), nil
}

func measure(ctx context.Context, o options, s *server.Server) error {
	c, err := dial(o.socket)
	if err != nil {
		return err
	}
	logs, err := os.MkdirTemp(machine.Dir(), "longshore-bench-logs-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(logs) }()
	b := &bench{options: o, client: c, server: s, logs: logs, samples: samples{}}
	err = b.all(ctx)
	if o.samples != "" {
		err = errors.Join(err, b.samples.write(o.samples))
	}
	return err
}

// header describes the machine of the figures; without it they mean nothing.
func header(what string) {
	var u syscall.Utsname
	_ = syscall.Uname(&u)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("%s: kernel %s, %d cpus, load %s\n", what, chars(u.Release[:]), runtime.NumCPU(), strings.TrimSpace(string(load)))
}

func chars(c []int8) string {
	var b strings.Builder
	for _, x := range c {
		if x == 0 {
			break
		}
		b.WriteByte(byte(x))
	}
	return b.String()
}
