package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// patience bounds one boot: a guest that takes longer hangs.
const patience = 10 * time.Minute

// lab is the host's side: one data disk, and a guest that is booted and cut.
type lab struct {
	qemu    []string // program and arguments before the kernel parameters
	dir     string   // for the socket
	disk    *disk
	console io.Writer
	rnd     *rand.Rand
	test    test
	devices []string      // further arguments of QEMU
	rise    time.Duration // a cut in the boot is within so long after the init script's first line
}

// test is the host's knowledge of a guest, from the lines of all boots.
type test interface {
	// params are the kernel parameters of the next boot.
	params() string
	// observe takes one line of the console, without its "vm: ". An error is a violation.
	observe(line string) error
}

// host cuts the power n times, then boots once more and lets the guest end. With -services the guest
// reboots itself n times as well.
func host(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("host", flag.ContinueOnError)
	n := fs.Int("n", 20, "how often to cut the power")
	withServices := fs.Bool("services", false, "boot the guest of services.go")
	seed := fs.Uint64("seed", uint64(time.Now().UnixNano()), "of all choices")
	data := fs.String("disk", "", "the data disk's image")
	base := fs.String("base", "", "directory of kernel and base image")
	second := fs.String("longshore", "", "image of the guest's /longshore")
	console := fs.String("console", "", "file that takes the console")
	qemu := fs.String("qemu", "hack/vm/qemu.sh", "starts QEMU")
	if err := fs.Parse(args); err != nil {
		return err
	}
	out, err := os.Create(*console)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	d, err := openDisk(*data)
	if err != nil {
		return err
	}
	defer func() { _ = d.close() }()
	l := &lab{
		qemu: []string{*qemu, *base, *second}, disk: d, dir: filepath.Dir(*data), console: out,
		rnd:  rand.New(rand.NewPCG(*seed, 0)), //nolint:gosec // a test must be repeatable
		test: wanted{}, rise: 12 * time.Second,
	}
	fmt.Printf("power cut test: %d cuts, seed %d\n", *n, *seed)
	if *withServices {
		return l.services(ctx, *n)
	}
	for i := range *n {
		if err := l.cut(ctx, i+1); err != nil {
			return fmt.Errorf("boot %d: %w", i+1, err)
		}
	}
	if err := l.last(ctx); err != nil {
		return fmt.Errorf("last boot: %w", err)
	}
	fmt.Printf("power cut test: %d cuts survived\n", *n)
	return nil
}

// cut boots, cuts at a moment drawn here, and settles the disk. Most cuts fall
// into the work, some into boot, recovery and check.
func (l *lab) cut(ctx context.Context, i int) error {
	word, lines, within := sayWorking, l.rnd.IntN(14), 3*time.Second
	if i > 1 && l.rnd.IntN(5) == 0 {
		word, lines, within = sayUp, 0, l.rise
	}
	delay := time.Duration(l.rnd.Int64N(int64(within)))
	g, err := l.boot(ctx, "longshore.work=1")
	if err != nil {
		return err
	}
	defer func() { _ = g.end() }()
	if err := g.until(func(line string) bool { return strings.HasPrefix(line, word) }); err != nil {
		return err
	}
	if err := g.until(func(line string) bool {
		if word == sayUp || strings.HasPrefix(line, sayBegin) || strings.HasPrefix(line, sayDid) {
			lines--
		}
		return lines < 0
	}); err != nil {
		return err
	}
	if err := g.during(delay, nil); err != nil {
		return err
	}
	// Half of the cuts hit the disk while it has something to lose.
	if l.rnd.IntN(2) == 0 {
		if err := g.during(5*time.Second, l.disk.cutAfter(1+l.rnd.IntN(60))); err != nil {
			return err
		}
	}
	l.disk.cutAfter(0)
	at := g.last
	if err := g.end(); err != nil {
		return err
	}
	kind := loss(l.rnd.IntN(int(losses)))
	pending, err := l.disk.settle(kind, l.rnd)
	if err != nil {
		return err
	}
	fmt.Printf("cut %2d: last heard %q; of %d writes never flushed %s; next boot: %s\n", i, at, pending, kind, l.test.params())
	return nil
}

// last boots without work: the guest checks, powers off, and that is all.
func (l *lab) last(ctx context.Context) error {
	g, err := l.boot(ctx, "longshore.work=0")
	if err != nil {
		return err
	}
	defer func() { _ = g.end() }()
	return g.until(func(line string) bool { return line == sayDone })
}

// machine is one boot of the guest.
type machine struct {
	lab    *lab
	cmd    *exec.Cmd
	lines  chan string // of the console that are for us; closed when QEMU is gone
	served chan error
	listen net.Listener
	timer  *time.Timer
	last   string
	ended  bool
}

func (l *lab) boot(ctx context.Context, params string) (*machine, error) {
	socket := filepath.Join(l.dir, "disk.sock")
	_ = os.Remove(socket)
	listen, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	g := &machine{lab: l, lines: make(chan string), served: make(chan error, 1), listen: listen, timer: time.NewTimer(patience)}
	args := append(append([]string{}, l.qemu[1:]...), l.test.params()+" "+params)
	args = append(append(args, l.devices...), "-blockdev", "driver=nbd,node-name=data,server.type=unix,server.path="+socket, "-device", "virtio-blk-pci,drive=data,addr=12")
	g.cmd = exec.CommandContext(ctx, l.qemu[0], args...)
	stdout, err := g.cmd.StdoutPipe()
	if err == nil {
		g.cmd.Stderr = os.Stderr
		err = g.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, listen.Close())
	}
	go func() {
		conn, err := listen.Accept()
		if err == nil {
			err = errors.Join(l.disk.serve(conn), ended(conn.Close()))
		}
		g.served <- err
	}()
	go g.read(stdout)
	return g, nil
}

// read copies the console to the file, and passes lines that begin with "vm: " to us.
func (g *machine) read(r io.Reader) {
	defer close(g.lines)
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line := strings.TrimRight(s.Text(), "\r")
		_, _ = fmt.Fprintln(g.lab.console, line)
		if line, ok := strings.CutPrefix(line, "vm: "); ok {
			g.lines <- line
		}
	}
}

// until takes lines until found returns true.
func (g *machine) until(found func(line string) bool) error {
	for {
		select {
		case line, ok := <-g.lines:
			if err := g.take(line, ok); err != nil {
				return err
			}
			if found(line) {
				return nil
			}
		case <-g.timer.C:
			return fmt.Errorf("the guest hangs after %q", g.last)
		}
	}
}

// during takes lines for so long, or until something comes from early.
func (g *machine) during(d time.Duration, early <-chan struct{}) error {
	over := time.NewTimer(d)
	defer over.Stop()
	for {
		select {
		case line, ok := <-g.lines:
			if err := g.take(line, ok); err != nil {
				return err
			}
		case <-early:
			return nil
		case <-over.C:
			return nil
		}
	}
}

func (g *machine) take(line string, ok bool) error {
	if !ok {
		return fmt.Errorf("the guest ended by itself after %q", g.last)
	}
	g.last = line
	err := g.lab.test.observe(line)
	if text, ok := strings.CutPrefix(line, sayViolation+" "); ok {
		// The guest's details follow at once.
		_ = g.until(func(string) bool { return false })
		return errors.New(text)
	}
	return err
}

// end kills QEMU, and then reads its last output and requests: a line on the console before the cut
// counts.
func (g *machine) end() error {
	if g.ended {
		return nil
	}
	g.ended = true
	g.timer.Stop()
	_ = g.cmd.Process.Kill()
	var err error
	for line := range g.lines {
		if e := g.take(line, true); e != nil && err == nil {
			err = e
		}
	}
	_ = g.cmd.Wait()
	_ = g.listen.Close()
	if e := <-g.served; e != nil && !errors.Is(e, net.ErrClosed) && err == nil {
		err = e
	}
	return err
}
