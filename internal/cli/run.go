package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/typed"
)

// runFlags holds the flags of run that are not fields of the request.
type runFlags struct {
	req        *longshorev1.CreateRequest
	env        []string
	labels     []string
	volumes    []string
	ports      []string
	memory     string
	entrypoint string
	restart    string
	stopAfter  string
	sigProxy   bool
	detach     bool
	quiet      bool
	dns        []string
	networks   []string
	creds      string
	more       moreFlags
}

func newRun(a *app) *cobra.Command {
	f := &runFlags{req: &longshorev1.CreateRequest{}}
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE [COMMAND [ARG...]]",
		Short: "Run a program in a new container",
		Long: "Run a program in a new container, in a sandbox of its own. Without -d, run shows the program's output and exits with its exit status, or with\n" +
			"127 if the program does not exist, 126 if it cannot be executed, 125 if the container could not be created.\n" +
			"Ctrl-P Ctrl-Q detaches from a terminal.",
		Args: base.MinArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.fill(cmd.Flags(), args, a.Getenv); err != nil {
				return &base.UsageError{Err: err}
			}
			// A container with --rm is gone before anybody could read a log of it.
			f.req.Hold = !f.detach && f.req.GetAutoRemove()
			f.req.Start, f.req.StdinOnce = f.detach, !f.detach
			return base.StartError(a.Call(func(c *base.Client) error { return a.run(cmd.Context(), c, f) }))
		},
	}
	f.define(cmd.Flags())
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "run in the background and print the ID")
	cmd.Flags().BoolVar(&f.sigProxy, "sig-proxy", true, "forward signals to the program")
	return cmd
}

func newCreate(a *app) *cobra.Command {
	f := &runFlags{req: &longshorev1.CreateRequest{}}
	cmd := &cobra.Command{
		Use:   "create [flags] IMAGE [COMMAND [ARG...]]",
		Short: "Create a container without starting it",
		Long:  "Create a container as run does and print its ID, without starting it. Use start to start it.",
		Args:  base.MinArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.fill(cmd.Flags(), args, a.Getenv); err != nil {
				return &base.UsageError{Err: err}
			}
			return base.StartError(a.Call(func(c *base.Client) error {
				created, err := a.create(cmd.Context(), c, f)
				if err != nil {
					return err
				}
				return a.Print("%s\n", created.GetId())
			}))
		},
	}
	f.define(cmd.Flags())
	return cmd
}

// define defines the flags that run and create share.
func (f *runFlags) define(fl *pflag.FlagSet) {
	fl.SetInterspersed(false)                       // arguments after the image belong to the program
	fl.Bool("help", false, "help for this command") // -h is the host name's, as people type it
	fl.SetNormalizeFunc(normalNames)
	fl.StringVar(&f.req.Name, "name", "", "name of the container (default: generated)")
	fl.BoolVarP(&f.req.Stdin, "interactive", "i", false, "keep standard input open")
	fl.BoolVarP(&f.req.Tty, "tty", "t", false, "allocate a terminal")
	fl.BoolVar(&f.req.AutoRemove, "rm", false, "remove the container when it has ended")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "environment variable, NAME=value, or NAME to copy it from this environment")
	fl.StringArrayVarP(&f.volumes, "volume", "v", nil, "mount, [/host/path:|./path:|volume[/path in it]:]/path[:ro|rw|nocopy|rshared|z|…]; without a source: anonymous volume")
	fl.StringArrayVarP(&f.ports, "publish", "p", nil, "forward a port or a range, [[ip:][host]:]container[/tcp|udp|sctp]; the agent chooses a host port that is not named")
	fl.StringVarP(&f.memory, "memory", "m", "", "memory limit, such as 64m or 2g")
	fl.Float64Var(&f.req.Cpus, "cpus", 0, "CPU limit, such as 1.5")
	fl.Int64Var(&f.req.Pids, "pids", 0, "limit of processes and threads; -1 for none")
	fl.StringVarP(&f.req.User, "user", "u", "", "user[:group] by name or number")
	fl.StringVarP(&f.req.Workdir, "workdir", "w", "", "working directory")
	fl.StringVar(&f.entrypoint, "entrypoint", "", "program in place of the image's entry point; empty uses none")
	fl.BoolVar(&f.req.Privileged, "privileged", false, "all capabilities and devices, no confinement")
	fl.StringArrayVar(&f.req.CapAdd, "cap-add", nil, "capability to add, or ALL")
	fl.StringArrayVar(&f.req.CapDrop, "cap-drop", nil, "capability to drop, or ALL")
	fl.BoolVar(&f.req.NewPrivileges, "new-privileges", false, "allow programs to gain privileges, such as by set-user-ID (su, sudo)")
	fl.BoolVar(&f.req.ReadOnly, "read-only", false, "root filesystem read-only")
	fl.BoolVar(&f.req.Init, "init", false, "run a tiny init as pid 1, which reaps processes and forwards signals")
	fl.StringVarP(&f.req.Hostname, "hostname", "h", "", "host name (default: the container's name)")
	fl.StringArrayVarP(&f.labels, "label", "l", nil, "label, NAME=value")
	fl.StringArrayVar(&f.networks, "network", nil, "network of network create, host, none, or default (the agent's); repeatable; name=NET,alias=…,ip=…,ip6=…,mac-address=…")
	fl.StringArrayVar(&f.dns, "dns", nil, "name server to use instead of the host's")
	fl.StringVar(&f.req.Runtime, "runtime", "", "name of a configured runtime")
	fl.StringVar(&f.req.Pull, "pull", "missing", "when to pull the image: missing, always, never")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "do not show the progress of a pull")
	fl.StringVar(&f.creds, "creds", "", "registry user[:password]; without a password $LONGSHORE_REGISTRY_PASSWORD is used")
	fl.StringVar(&f.req.StopSignal, "stop-signal", "", "signal that stops the program (default: the image's, or TERM)")
	fl.StringVar(&f.stopAfter, "stop-timeout", "10s", "time from the stop signal to KILL, seconds or 1m30s")
	f.more.define(fl, f.req)
	fl.StringVar(&f.restart, "restart", "no", "accepts only no: restarting is the orchestrator's task")
}

// fill makes the request from flags and arguments.
func (f *runFlags) fill(fl *pflag.FlagSet, args []string, getenv func(string) string) (err error) {
	if f.restart != "no" {
		return errors.New("--restart: Longshore has no restart policy; an orchestrator restarts containers")
	}
	r := f.req
	r.Image, r.Command = args[0], args[1:]
	if len(r.GetCommand()) > 0 && r.GetCommand()[0] == "--" { // the end of the options, as some write it
		r.Command = r.GetCommand()[1:]
	}
	r.ClearEntrypoint = fl.Changed("entrypoint") && f.entrypoint == ""
	r.Entrypoint = f.entrypoint
	if r.StopGrace, err = parseGrace("--stop-timeout", f.stopAfter); err != nil {
		return err
	}
	if r.GetPids() == -1 {
		r.Pids = 0
	}
	fromFiles, err := f.more.envFiles()
	if err != nil {
		return err
	}
	if r.Env, err = typed.Env(append(fromFiles, f.env...), getenv); err != nil {
		return err
	}
	if r.Labels, err = typed.Labels(f.labels); err != nil {
		return err
	}
	if f.memory != "" {
		if r.MemoryBytes, err = typed.Bytes(f.memory); err != nil {
			return fmt.Errorf("--memory: %w", err)
		}
	}
	for _, v := range f.volumes {
		m, err := typed.Mount(v)
		if err != nil {
			return err
		}
		r.Mounts = append(r.Mounts, m)
	}
	for _, p := range f.ports {
		q, err := typed.Ports(p)
		if err != nil {
			return err
		}
		r.Ports = append(r.Ports, q...)
	}
	if len(f.dns) > 0 {
		r.Dns = &longshorev1.Dns{Servers: f.dns}
	}
	if err := addNetworks(r, f.networks); err != nil {
		return err
	}
	return f.more.fill(r)
}

func (a *app) run(ctx context.Context, c *base.Client, f *runFlags) error {
	if f.req.GetTty() && f.req.GetStdin() && !f.detach {
		if _, ok := base.Terminal(a.Stdin); !ok {
			return errors.New("-it needs a terminal, and standard input is not one (use -i alone)")
		}
	}
	created, err := a.create(ctx, c, f)
	if err != nil {
		return err
	}
	if f.detach {
		return a.Print("%s\n", created.GetId())
	}
	stream, err := c.Containers.Attach(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: &longshorev1.AttachStart{
		Name: created.GetId(), Stdin: f.req.GetStdin(), Start: true, Size: f.req.GetSize(),
	}}}); err != nil && !errors.Is(err, io.EOF) { // EOF: the reason comes with the answer
		return err
	}
	s := &session{
		a: a, stdin: f.req.GetStdin(), forward: f.sigProxy, recv: stream.Recv,
		send: func(in *longshorev1.Input) error {
			return stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: in}})
		},
	}
	status, err := s.run(ctx)
	if err == nil && f.req.GetAutoRemove() {
		// The agent ends the stream when the container is gone.
		_ = stream.CloseSend()
		for rerr := error(nil); rerr == nil; _, rerr = stream.Recv() {
		}
	}
	return a.ended(status, err)
}

// statusInterrupted is the exit status of a command that the user has interrupted, as shells have it.
const statusInterrupted = 130

// ended makes the process's exit status the exit status of this command.
func (a *app) ended(status int, err error) error {
	switch {
	case errors.Is(err, errDetached):
		a.Warn("detached; the container keeps running")
		return nil
	case errors.Is(err, errInterrupted):
		return &base.ExitError{Status: statusInterrupted, Err: errors.New("interrupted three times; not waiting for the program's end")}
	case err != nil:
		return err
	case status != 0:
		return &base.ExitError{Status: status}
	}
	return nil
}

// create sends the request, and shows the progress of the pull and the warnings.
func (a *app) create(ctx context.Context, c *base.Client, f *runFlags) (*longshorev1.Created, error) {
	if err := f.more.checkID(); err != nil {
		return nil, err
	}
	if f.req.GetPull() != "never" {
		found, err := credentialsFor(ctx, a, f.req.GetImage(), f.creds)
		if err != nil {
			return nil, err
		}
		f.req.Credentials = found
	}
	f.req.Size = a.TerminalSize()
	stream, err := c.Containers.Create(ctx, f.req)
	if err != nil {
		return nil, err
	}
	show := a.newProgress(a.Stderr, f.quiet)
	defer show.end()
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if p := m.GetPull(); p != nil {
			show.step(p)
		}
		if created := m.GetCreated(); created != nil {
			for _, w := range created.GetWarnings() {
				a.Warn("warning: %s", w)
			}
			return created, f.more.writeID(created.GetId())
		}
	}
}
