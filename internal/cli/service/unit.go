package service

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/unitfile"
)

// restarts are systemd's values of Restart=.
var restarts = []string{"no", "on-success", "on-failure", "on-abnormal", "on-watchdog", "on-abort", "always"}

// NewUnit returns the command unit.
func NewUnit(a *base.App) *cobra.Command {
	var fresh bool
	var restart string
	cmd := &cobra.Command{
		Use:   "unit [--new] NAME",
		Short: "Print a systemd unit for a container",
		Long: "Print a systemd unit that starts an existing container and stops it. The service is ready when the container is healthy, or, without a\n" +
			"health check, when its program runs; it ends with the program's exit status, and systemd restarts it. With --new the unit does not need\n" +
			"the container: it makes one of the same settings at each start and removes it at the end. The container runs in the agent's cgroup, so\n" +
			"limits of the unit do not apply to it, and a restart of the agent does not stop it.",
		Args: base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(restarts, restart) {
				return &base.UsageError{Err: fmt.Errorf("--restart %q is none of %s", restart, strings.Join(restarts, ", "))}
			}
			return a.Call(func(c *base.Client) error {
				u, err := describe(cmd, c, args[0])
				if err != nil {
					return err
				}
				if fresh && !cmd.Flags().Changed("restart") {
					restart = restartOf(u.policy, restart)
				}
				u.restart, u.socket, u.version, u.program = restart, a.OtherSocket(), a.Version, executable()
				if fresh {
					err = u.again()
				} else {
					err = u.existing()
				}
				if err != nil {
					return err
				}
				if fresh && len(u.request.GetEnv()) > 0 {
					a.Warn("the unit has the values of the container's environment variables, and every user can read units through systemd")
				}
				return a.Print("%s", u.text())
			})
		},
	}
	cmd.Flags().BoolVar(&fresh, "new", false, "make a new container at each start, with the settings of this one")
	cmd.Flags().StringVar(&restart, "restart", "on-failure", "systemd's Restart=, such as on-failure or always; with --new the default is the container's policy")
	return cmd
}

// restartOf returns systemd's value for a container's restart policy, or otherwise for none.
func restartOf(policy, otherwise string) string {
	switch policy {
	case "always", "unless-stopped":
		return "always"
	case "on-failure":
		return "on-failure"
	}
	return otherwise
}

// executable returns the path of this program.
func executable() string {
	if path, err := os.Executable(); err == nil {
		return path
	}
	return "/usr/bin/longshore"
}

// unit is a systemd unit of a container.
type unit struct {
	name, image              string
	version, program, socket string
	restart                  string
	grace                    time.Duration
	autoRemove               bool
	policy                   string // the container's own restart policy
	request                  *longshorev1.CreateRequest

	start, stop, post []string // the commands, without the program
}

// describe asks the agent for a container.
func describe(cmd *cobra.Command, c *base.Client, name string) (*unit, error) {
	found, err := Find(cmd.Context(), c, name)
	if err != nil {
		return nil, err
	}
	resp, err := c.Containers.Inspect(cmd.Context(), &longshorev1.InspectRequest{Name: found.GetId(), ShowEnv: true})
	if err != nil {
		return nil, err
	}
	var doc struct {
		Config struct {
			Stop struct {
				Grace time.Duration `json:"grace"`
			} `json:"stop"`
		} `json:"config"`
		AutoRemove bool   `json:"auto_remove"`
		Data       []byte `json:"data"`
	}
	if err := json.Unmarshal(resp.GetJson(), &doc); err != nil {
		return nil, fmt.Errorf("read the record of %s: %w", name, err)
	}
	u := &unit{name: found.GetName(), image: found.GetImage(), grace: doc.Config.Stop.Grace, autoRemove: doc.AutoRemove}
	shown, err := present.Document("container", resp.GetJson())
	if err != nil {
		return nil, err
	}
	if u.policy, err = policyOf(shown); err != nil {
		return nil, err
	}
	if u.name == "" {
		u.name = found.GetKey()
	}
	var rec struct {
		Request json.RawMessage `json:"request"`
	}
	if json.Unmarshal(doc.Data, &rec) == nil && len(rec.Request) > 0 {
		u.request = &longshorev1.CreateRequest{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(rec.Request, u.request); err != nil {
			return nil, fmt.Errorf("read the request that made %s: %w", name, err)
		}
	}
	return u, nil
}

// policyOf returns the name of the restart policy in a document of inspect.
func policyOf(document any) (string, error) {
	text, err := json.Marshal(document)
	if err != nil {
		return "", err
	}
	var d struct {
		HostConfig struct{ RestartPolicy struct{ Name string } }
	}
	err = json.Unmarshal(text, &d)
	return d.HostConfig.RestartPolicy.Name, err
}

// existing completes a unit that starts the existing container.
func (u *unit) existing() error {
	switch {
	case u.autoRemove:
		return fmt.Errorf("container %s is removed when it ends (--rm), so no unit can start it again: use --new", u.name)
	case u.policy != "" && u.policy != "no":
		return fmt.Errorf("container %s has the restart policy %s, and systemd would restart it as well: run `longshore update --restart no %s` first, or use --new", u.name, u.policy, u.name)
	}
	u.start = []string{"start", "--sdnotify=" + string(Healthy), u.name}
	u.stop = []string{"stop", "--ignore", u.name}
	u.post = u.stop
	return nil
}

// again completes a unit that makes the container at each start.
func (u *unit) again() error {
	if u.request == nil {
		return fmt.Errorf("container %s was made by a version of the agent that did not store the request: make it again, then use --new", u.name)
	}
	args, err := runflags.Args(u.request)
	if err != nil {
		return err
	}
	u.start = append([]string{"run", "--name=" + u.name, "--replace", "--rm", "--sdnotify=" + string(Healthy)}, args...)
	u.stop = []string{"stop", "--ignore", u.name}
	u.post = []string{"rm", "--force", "--volumes", "--ignore", u.name}
	return nil
}

// marginToStop is the time that a stop may take beyond the container's grace period.
const marginToStop = 30 * time.Second

// text returns the unit. The agent is wanted, not required: systemd would stop the service with a required agent, and a
// container need not end when the agent is restarted.
func (u *unit) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Made by longshore unit %s.", u.version)
	line("[Unit]")
	line("Description=Container %s (%s)", unitfile.Specifiers(u.name), unitfile.Specifiers(u.image))
	line("Wants=network-online.target longshore.service")
	line("After=network-online.target longshore.service")
	line("")
	line("[Service]")
	line("Type=notify")
	line("NotifyAccess=main")
	if u.socket != "" {
		line("Environment=%s", unitfile.Quote("LONGSHORE_SOCKET="+unitfile.Specifiers(u.socket)))
	}
	line("ExecStart=%s", u.command(u.start))
	// The container may have ended, or may be gone.
	line("ExecStop=-%s", u.command(u.stop))
	line("ExecStopPost=-%s", u.command(u.post))
	line("Restart=%s", u.restart)
	line("SuccessExitStatus=%s", cleanExits)
	line("KillMode=mixed")
	line("TimeoutStopSec=%d", int((max(u.grace, 0) + marginToStop).Seconds()))
	line("")
	line("[Install]")
	line("WantedBy=multi-user.target")
	return b.String()
}

// cleanExits are the exit statuses for the signals HUP, INT, PIPE and TERM. systemd regards these ends of its own services as
// clean.
const cleanExits = "129 130 141 143"

// command returns a command line of this program that systemd takes as it is.
func (u *unit) command(args []string) string {
	words := make([]string, 0, len(args)+1)
	for _, w := range append([]string{u.program}, args...) {
		words = append(words, unitfile.Literal(w))
	}
	return unitfile.Line(words)
}
