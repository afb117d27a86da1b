// Package command is the command line of the hub: one command serves, the others ask the hub
// that does, by its socket.
//
// Start at Main.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/compose"
	"github.com/longshore/longshore/internal/hub/peers"
	"github.com/longshore/longshore/internal/hub/session"
	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/trail"
)

// Options are what a program has.
type Options struct {
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            []string
	Version        string
}

// DefaultDir is the default of --dir: the directory with everything that a hub writes, its socket included.
const DefaultDir = "/var/lib/longshore-hub"

// socketName is the name of the hub's socket in its directory.
const socketName = "hub.sock"

// SocketEnv names the socket of the hub that is asked.
const SocketEnv = "LONGSHORE_HUB_SOCKET"

// app is one run of the command line.
type app struct {
	Options
	socket string // "" is socketName in dir
	dir    string
	json   bool
	remote remote
}

// Main runs a command and returns the program's exit code.
func Main(ctx context.Context, o Options) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	a := &app{Options: o}
	root := &cobra.Command{
		Use: "longshore-hub", Short: "Run a fleet of nodes that dial out", Version: o.Version, SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetArgs(o.Args)
	root.SetIn(o.Stdin)
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	root.PersistentFlags().StringVar(&a.socket, "socket", a.env()[SocketEnv], "the hub's socket (or "+SocketEnv+"); "+socketName+" in --dir by default")
	root.PersistentFlags().StringVar(&a.dir, "dir", DefaultDir, "the hub's directory")
	a.remote.flags(root.PersistentFlags())
	root.AddCommand(a.rm(), a.authority(), a.items("secret"), a.items("config"), a.operator(), a.events(), a.rekey())
	root.AddCommand(a.serve(), a.token(), a.nodes(), a.node(), a.apply(false), a.apply(true), a.services(), a.tasks(), a.logs(), a.backup(), a.restore(), a.step("rollback", "Return a service to its previous spec"), a.step("pause", "Pause the update of a service"), a.step("resume", "Resume the paused update of a service"))
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(o.Stderr, "longshore-hub:", err)
		return 1
	}
	return 0
}

func (a *app) env() map[string]string {
	all := map[string]string{}
	for _, e := range a.Env {
		if k, v, ok := strings.Cut(e, "="); ok {
			all[k] = v
		}
	}
	return all
}

// call asks the hub for one answer.
func (a *app) call(ctx context.Context, method, path string, body, answer any) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	return c.Call(ctx, method, path, body, answer)
}

// client is a client of the hub that is asked: by its socket, or over TCP.
func (a *app) client() (*api.Client, error) {
	c := api.NewClient(a.socketIn(a.dir))
	if a.remote.url != "" {
		var err error
		if c, err = a.remote.client(); err != nil {
			return nil, err
		}
	}
	c.Notify = func(notice string) { _, _ = fmt.Fprintln(a.Stderr, "longshore-hub:", printable(notice)) }
	return c, nil
}

// socketIn returns the socket of a hub with a directory.
func (a *app) socketIn(dir string) string {
	if a.socket != "" {
		return a.socket
	}
	return filepath.Join(dir, socketName)
}

func (a *app) serve() *cobra.Command {
	var o hub.Options
	var address, docker, remote, level string
	var at storeFlags
	var quota int64
	cmd := &cobra.Command{Use: "serve", Short: "Serve nodes and operators", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) (err error) {
		if o.Log, _, err = obs.NewLogger(a.Stderr, obs.LogConfig{Level: level}); err != nil {
			return err
		}
		if o.Store, err = at.open(quota << 20); err != nil {
			return err
		}
		if err := os.MkdirAll(at.dir, 0o700); err != nil { // for the socket, where etcd is elsewhere
			return fmt.Errorf("the hub's directory: %w", err)
		}
		if o.Advertise == "" {
			o.Advertise = address
		}
		o.Version = a.Version
		return a.run(cmd.Context(), o, addresses{nodes: address, operators: a.socketIn(at.dir), remote: remote, docker: docker, audit: filepath.Join(at.dir, "audit")})
	}}
	f := cmd.Flags()
	at.flags(cmd)
	f.Int64Var(&quota, "quota", etcd.DefaultQuota>>20, "size limit of the database in --dir, in MiB")
	f.DurationVar(&o.Lease, "lease", peers.DefaultTTL, "time after the last sign of life until the other hubs consider a hub gone")
	f.StringVar(&address, "listen", ":2377", "listen address for nodes")
	f.StringVar(&docker, "docker-socket", "", "socket, of mode 0600, for docker's command line (DOCKER_HOST=unix://PATH); none by default")
	f.StringVar(&o.Advertise, "advertise", "", "address of the hub for nodes, HOST:PORT; default --listen if that names a host")
	f.StringVar(&remote, "api-listen", "", "listen address for operators with a certificate or a token (longshore-hub operator)")
	f.BoolVar(&o.Approve, "approve", false, "nodes that join wait for longshore-hub node accept")
	f.BoolVar(&o.BanClones, "ban-clones", false, "refuse a node after its certificate was used at two addresses (longshore-hub node reauthorise)")
	f.DurationVar(&o.CertificateLife, "certificate-life", 90*24*time.Hour, "validity of the certificates of nodes")
	f.DurationVar(&o.RenewGrace, "renew-grace", 0, "grace period for renewals of expired certificates")
	f.DurationVar(&o.Heartbeat, "heartbeat", session.DefaultPeriod, "interval of the heartbeats of nodes")
	f.IntVar(&o.Grace, "grace", session.DefaultGrace, "number of missed heartbeats after which a node is down")
	f.DurationVar(&o.MoveAfter, "move-after", hub.DefaultMoveAfter, "time that a node is down before its replicas start elsewhere")
	f.BoolVar(&o.Hold, "hold", false, "start, move and end no tasks")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// The limits of the audit trail, which are those of a node.
const (
	auditBytes = 16 << 20
	auditFiles = 4
)

// addresses are where the hub is to serve; "" is nowhere. audit is the directory of the audit trail.
type addresses struct{ nodes, operators, remote, docker, audit string }

// run is the hub, until ctx ends.
func (a *app) run(ctx context.Context, o hub.Options, where addresses) (err error) {
	h, err := hub.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	// A hub that cannot open it serves without: its fleet matters more.
	if l, err := trail.Open(trail.Options{Dir: where.audit, Bytes: auditBytes, Files: auditFiles, Logger: o.Log}); err != nil {
		o.Log.ErrorContext(ctx, "the hub keeps no audit trail", "error", err)
	} else {
		h.Trail = l
		defer func() { _ = l.Close() }()
	}
	var at hub.Listeners
	defer func() {
		if err != nil {
			at.Close()
		}
	}()
	if at.Nodes, err = new(net.ListenConfig).Listen(ctx, "tcp", where.nodes); err != nil {
		return fmt.Errorf("listen for nodes: %w", err)
	}
	if where.remote != "" {
		if at.Remote, err = new(net.ListenConfig).Listen(ctx, "tcp", where.remote); err != nil {
			return fmt.Errorf("listen for operators: %w", err)
		}
	}
	if at.Operators, err = listen(ctx, where.operators); err != nil {
		return err
	}
	if where.docker != "" {
		if at.Docker, err = listen(ctx, where.docker); err != nil {
			return err
		}
	}
	o.Log.InfoContext(ctx, "the hub serves", "nodes", at.Nodes.Addr().String(), "advertised", o.Advertise, "operators", where.operators, "remote_operators", where.remote, "docker", where.docker,
		"cluster", h.CA.Authority.Cluster)
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		o.Log.WarnContext(ctx, "could not notify systemd that the hub is ready", "error", err)
	}
	return h.Serve(ctx, at)
}

// listen makes a socket for operators, in the place of one that nobody serves any more.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if info, err := os.Lstat(socket); err == nil && info.Mode().Type() == os.ModeSocket {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("another program serves operators at %s: give this hub another socket", socket)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(socket)
		}
	}
	defer syscall.Umask(syscall.Umask(0o177))
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for operators: %w", err)
	}
	return l, nil
}

// show prints an answer: as JSON, or as rows below a head.
func (a *app) show(answer any, head string, rows func(add func(cells ...any))) error {
	if a.json {
		enc := json.NewEncoder(a.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(answer)
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, head)
	rows(func(cells ...any) {
		text := make([]string, len(cells))
		for i, c := range cells {
			text[i] = printable(fmt.Sprint(c))
		}
		_, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(text, "\t"), "\t"))
	})
	return w.Flush()
}

// printable replaces control characters: what nodes say is theirs.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

func (a *app) asJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cmd
}

func (a *app) token() *cobra.Command {
	var rotate bool
	cmd := &cobra.Command{Use: "token", Short: "Show the join token for nodes", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var t hubv1.Token
		method, path := http.MethodGet, "/v1/token"
		if rotate {
			method, path = http.MethodPost, "/v1/token/rotate"
		}
		if err := a.call(cmd.Context(), method, path, nil, &t); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.Stdout, t.Worker)
		return err
	}}
	cmd.Flags().BoolVar(&rotate, "rotate", false, "create a new token; the previous one is no longer accepted")
	return cmd
}

func (a *app) nodes() *cobra.Command {
	return a.with(a.inspect("nodes", "NODE"), &cobra.Command{Use: "nodes", Short: "List the nodes", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var list []hubv1.Node
		if err := a.call(cmd.Context(), http.MethodGet, "/v1/nodes", nil, &list); err != nil {
			return err
		}
		return a.show(list, "ID\tHOSTNAME\tSTATE\tAVAILABILITY\tMEMBERSHIP\tADDRESS\tENGINE", func(add func(...any)) {
			for _, n := range list {
				add(n.ID, n.Hostname, stateOf(n), n.Availability, n.Membership, addressOf(n), n.Engine)
			}
		})
	}})
}

func (a *app) node() *cobra.Command {
	group := &cobra.Command{Use: "node", Short: "Change a node"}
	change := func(use, short string, c hubv1.NodeChange) {
		group.AddCommand(&cobra.Command{Use: use + " NODE", Short: short, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), http.MethodPatch, "/v1/nodes/"+url.PathEscape(args[0]), c, &struct{}{})
		}})
	}
	do := func(use, short string) {
		group.AddCommand(&cobra.Command{Use: use + " NODE", Short: short, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), http.MethodPost, "/v1/nodes/"+url.PathEscape(args[0])+"/"+use, nil, &struct{}{})
		}})
	}
	do("accept", "Accept a pending node")
	do("renew", "Make a node renew its certificate")
	group.AddCommand(a.reauthorise())
	change("activate", "Give a node tasks", hubv1.NodeChange{Availability: "active"})
	change("pause", "Place no new tasks on a node", hubv1.NodeChange{Availability: "pause"})
	change("drain", "Remove all tasks from a node", hubv1.NodeChange{Availability: "drain"})
	group.AddCommand(&cobra.Command{Use: "label NODE NAME=VALUE|NAME-...", Short: "Set or remove labels of a node", Args: cobra.MinimumNArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		c := hubv1.NodeChange{Labels: map[string]*string{}}
		for _, l := range args[1:] {
			k, v, ok := strings.Cut(l, "=")
			switch gone, minus := strings.CutSuffix(l, "-"); {
			case ok:
				c.Labels[k] = &v
			case minus:
				c.Labels[gone] = nil
			default:
				return fmt.Errorf("%q is neither NAME=VALUE nor NAME-", l)
			}
		}
		return a.call(cmd.Context(), http.MethodPatch, "/v1/nodes/"+url.PathEscape(args[0]), c, &struct{}{})
	}}, &cobra.Command{Use: "rm NODE", Short: "Remove a node and revoke its certificate", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), http.MethodDelete, "/v1/nodes/"+url.PathEscape(args[0]), nil, &struct{}{})
	}})
	return group
}

func (a *app) apply(dry bool) *cobra.Command {
	var path, name string
	use, short := "apply", "Change a stack to match a file"
	if dry {
		use, short = "diff", "Show the changes that apply would make"
	}
	cmd := &cobra.Command{Use: use + " -f FILE", Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		data, err := a.read(path)
		if err != nil {
			return err
		}
		d, notes, err := compose.Read(cmd.Context(), compose.Source{Path: path, Data: data, Name: name, Env: a.env()})
		for _, note := range notes {
			cmd.PrintErrln(note)
		}
		if err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		diff, err := c.Apply(cmd.Context(), d, dry)
		if err != nil {
			return err
		}
		return a.changes(diff)
	}}
	cmd.Flags().StringVarP(&path, "file", "f", "compose.yaml", "the file; - is standard input")
	cmd.Flags().StringVar(&name, "name", "", "name of the stack (default: that of the file or of its directory)")
	return a.asJSON(cmd)
}

// changes prints what has changed.
func (a *app) changes(diff []hubv1.Difference) error {
	return a.show(diff, "CHANGE\tKIND\tNAME", func(add func(...any)) {
		for _, c := range diff {
			add(c.Change, c.Kind, c.Name)
		}
	})
}

func (a *app) read(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(a.Stdin)
	}
	return os.ReadFile(path)
}

func (a *app) services() *cobra.Command {
	return a.with(a.inspect("services", "SERVICE"), &cobra.Command{Use: "services", Short: "List the services", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var list []hubv1.Service
		if err := a.call(cmd.Context(), http.MethodGet, "/v1/services", nil, &list); err != nil {
			return err
		}
		return a.show(list, "NAME\tMODE\tRUNNING\tVERSION\tIMAGE\tUPDATE\tPENDING", func(add func(...any)) {
			for _, s := range list {
				add(s.Name, s.Mode, fmt.Sprintf("%d/%d", s.Running, s.Wanted), s.Version, s.Image, updateOf(s), s.Pending)
			}
		})
	}})
}

// updateOf tells how far the update of a service is, and why when it does not go on.
func updateOf(s hubv1.Service) string {
	if strings.HasSuffix(s.Update, "paused") || s.Update == "rolled back" {
		return s.Update + ": " + s.UpdateMessage
	}
	return s.Update
}

// step is a command that does one step with the update of a service.
func (a *app) step(what, short string) *cobra.Command {
	return &cobra.Command{Use: what + " SERVICE", Short: short, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), http.MethodPost, "/v1/services/"+url.PathEscape(args[0])+"/update", hubv1.UpdateStep{Step: what}, &struct{}{})
	}}
}

func (a *app) tasks() *cobra.Command {
	return a.with(a.inspect("tasks", "TASK"), &cobra.Command{Use: "tasks [SERVICE]", Short: "List the tasks", Args: cobra.MaximumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		var list, all []hubv1.Task
		if err := a.call(cmd.Context(), http.MethodGet, "/v1/tasks", nil, &all); err != nil {
			return err
		}
		for _, t := range all {
			if len(args) == 0 || t.Service == args[0] {
				list = append(list, t)
			}
		}
		return a.show(list, "ID\tSERVICE\tSLOT\tNODE\tDESIRED\tSTATE\tERROR", func(add func(...any)) {
			for _, t := range list {
				add(t.ID, t.Service, t.Slot, t.Hostname, t.Desired, t.State, t.Error)
			}
		})
	}})
}

func (a *app) logs() *cobra.Command {
	var follow bool
	tail := -1
	cmd := &cobra.Command{Use: "logs SERVICE|TASK", Short: "Show the output of tasks", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		return c.Logs(cmd.Context(), args[0], follow, tail, func(l hubv1.Line) error {
			if len(l.Missing) > 0 {
				_, err := fmt.Fprintf(a.Stderr, "the output of these nodes is incomplete: %s\n", strings.Join(l.Missing, " "))
				return err
			}
			out := a.Stdout
			if l.Stream == "stderr" {
				out = a.Stderr
			}
			_, err := out.Write(append([]byte(strings.TrimSuffix(string(l.Data), "\n")), '\n'))
			return err
		})
	}}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new output")
	cmd.Flags().IntVarP(&tail, "tail", "n", -1, "only this many of the last lines of each task")
	return cmd
}
