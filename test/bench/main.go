// Command bench measures a CRI v1 server as its clients see it: how long a pod
// takes to start, to be executed into and to go, how many start at once, what
// an idle one costs, and how soon the node is right again after a SIGKILL.
//
// Without -socket it runs Longshore's own agent, from -bin, in namespaces of its
// own; with it, any server that listens there (then nothing is killed, and
// memory is that of the processes named by -pss).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

type options struct {
	socket  string
	image   string
	bin     string
	runtime string
	pods    int
	burst   int
	workers int
	pss     string
	config  string
	steps   string
}

func main() {
	var o options
	flag.StringVar(&o.socket, "socket", "", "CRI socket of a running server; empty runs our own agent")
	flag.StringVar(&o.image, "image", "", "image for the containers, already pulled; only with -socket")
	flag.StringVar(&o.bin, "bin", "bin", "directory of longshore and longshore-keeper")
	flag.StringVar(&o.runtime, "runtime", "", "runtime handler; empty is the server's default")
	flag.IntVar(&o.pods, "n", 50, "pods started one after the other")
	flag.IntVar(&o.burst, "burst", 100, "pods started at once, and idle ones for memory")
	flag.IntVar(&o.workers, "workers", 10, "workers of the burst")
	flag.StringVar(&o.pss, "pss", "longshore,longshore-keeper", "programs whose memory is counted, by file name")
	flag.StringVar(&o.config, "config", "", "more TOML for our own agent")
	flag.StringVar(&o.steps, "steps", "", "which of start, executions, exec and burst, with commas; empty is all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.socket == "" && os.Getenv(childEnv) == "" {
		return inOwnNamespaces(ctx)
	}
	header()
	var n *node
	if o.socket == "" {
		var err error
		if n, err = startNode(ctx, &o); err != nil {
			return err
		}
		defer n.close()
	}
	c, err := dial(o.socket)
	if err != nil {
		return err
	}
	logs, err := os.MkdirTemp("", "longshore-bench-logs-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(logs) }()
	b := &bench{options: o, client: c, node: n, logs: logs}
	return b.all(ctx)
}

// header says on what the figures were taken; without it they mean nothing.
func header() {
	var u syscall.Utsname
	_ = syscall.Uname(&u)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("kernel %s, %d cpus, load %s\n", chars(u.Release[:]), runtime.NumCPU(), strings.TrimSpace(string(load)))
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
