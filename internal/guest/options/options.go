// Package options reads the options of a guest's agent in the kernel's command line, an option file
// and its environment, with Kata's names and values.
//
// It is pure: it gets texts, opens nothing and starts nothing. An option of Kata's that this agent
// does not serve is still checked, and listed in Unserved. Start at Options and Parse, then
// table.go for each option.
package options

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/invalid"
)

// CDITimeout is the default timeout for files of the Container Device Interface.
const CDITimeout = 100 * time.Second

// Options are the agent's options.
type Options struct {
	// Log is the least level that is logged.
	Log slog.Level
	// Listen is where the shim calls.
	Listen Address
	// LogPort is the vsock port that serves the log; 0 means that the log goes to the console.
	LogPort uint32
	// StreamPort is the vsock port for the shim's connections for streams of processes; 0 means that it reads and
	// writes them by calls.
	StreamPort uint32
	// ControlPort is the vsock port of the control API for the host; 0 means none. The option is
	// not Kata's.
	ControlPort uint32
	// HotplugTimeout is how long to wait for a device that is being plugged in.
	HotplugTimeout time.Duration
	// CDITimeout is how long to wait for files of the Container Device Interface, and VisibleCDI lets a variable of a
	// container name devices.
	CDITimeout time.Duration
	VisibleCDI bool
	// ReclaimPaused says that a container which is paused gives memory back. The option is not Kata's.
	ReclaimPaused bool
	// Unified asks for cgroup v2 alone.
	Unified bool
	// PolicyFile is the policy that the machine begins with; "" is Kata's own, if there is one. The
	// kernel's command line cannot name it: that comes from the host, about which it decides.
	PolicyFile string
	// File is the option file that the command line names; "" is none.
	File string
	// Unserved are the options without effect here, sorted; at most maxNames.
	Unserved []string
	// Unknown are the options that Kata's agent does not have either, sorted; at most maxNames.
	Unknown []string
}

// The default ports and times.
const (
	defaultPort    = 1024
	defaultHotplug = 3 * time.Second
)

// prefix begins the options of the kernel's command line that are the agent's.
const prefix = "agent."

// maxText is how long a text that is parsed may be. The kernel's command line has 4 KiB
// at most.
const maxText = 1 << 20

// maxNames bounds the listed options without effect.
const maxNames = 64

// Default returns the default options.
func Default() Options {
	return Options{Log: slog.LevelInfo, Listen: Address{CID: anyCID, Port: defaultPort}, HotplugTimeout: defaultHotplug, CDITimeout: CDITimeout}
}

// CommandLine reads the kernel's command line into o. The options of others are skipped,
// but for those about cgroups. It fails with InvalidArgument at the first value that is
// malformed, and names the option.
func (o *Options) CommandLine(text string) error {
	if len(text) > maxText {
		return invalid.Errorf("kernel command line: %d bytes are too many", len(text))
	}
	for _, p := range parameters(text) {
		name, value, given := strings.Cut(p, "=")
		switch name {
		case "systemd.unified_cgroup_hierarchy":
			on, err := toBool(value, given)
			if err != nil {
				return fmt.Errorf("kernel command line: %s: %w", name, err)
			}
			o.Unified = on
		case "cgroup_no_v1":
			// The kernel knows names of single controllers, too, which then are simply not there.
			o.Unified = o.Unified || value == "all"
		default:
			key, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue
			}
			if err := o.set(key, value, given, fromCommandLine); err != nil {
				return fmt.Errorf("kernel command line: %s: %w", name, err)
			}
		}
	}
	return nil
}

// Environment reads those variables that Kata's agent has, by a function such as
// os.LookupEnv.
func (o *Options) Environment(lookup func(string) (string, bool)) error {
	for _, v := range []struct{ name, key string }{
		{"KATA_AGENT_SERVER_ADDR", "server_addr"}, {"KATA_AGENT_LOG_LEVEL", "log"}, {"KATA_AGENT_TRACING", "trace"}, {"KATA_AGENT_POLICY_FILE", policyFile},
	} {
		value, ok := lookup(v.name)
		if !ok || value == "" {
			continue
		}
		if err := o.set(v.key, value, true, fromEnvironment); err != nil {
			return fmt.Errorf("environment: %s: %w", v.name, err)
		}
	}
	return nil
}

// set sets one option, by its name without a prefix.
func (o *Options) set(key, value string, given bool, from source) error {
	if from == fromFile {
		if other, ok := inFiles[key]; ok {
			key = other
		}
	}
	opt, ok := known[key]
	if !ok && strings.HasPrefix(key, "mem_agent_") {
		opt, ok = text, true
	}
	if !ok || key == policyFile && from == fromCommandLine {
		o.Unknown = with(o.Unknown, key)
		return nil
	}
	if !given && opt.needs {
		return invalid.Errorf("no value")
	}
	if opt.apply != nil {
		return opt.apply(o, value, given)
	}
	if err := opt.check(value, given); err != nil {
		return err
	}
	o.Unserved = with(o.Unserved, key)
	return nil
}

// with adds a name to a sorted list, once. A list with maxNames says enough.
func with(list []string, name string) []string {
	at, found := slices.BinarySearch(list, name)
	if found || len(list) >= maxNames {
		return list
	}
	return slices.Insert(list, at, name)
}

// parameters splits a command line as the kernel does: at blanks that are outside of
// double quotes, and without the quotes around a value or a whole parameter.
func parameters(text string) (all []string) {
	for text = strings.TrimLeft(text, blanks); text != ""; text = strings.TrimLeft(text, blanks) {
		end, quoted := len(text), false
		for i := range len(text) {
			if text[i] == '"' {
				quoted = !quoted
			}
			if !quoted && strings.IndexByte(blanks, text[i]) >= 0 {
				end = i
				break
			}
		}
		all = append(all, unquote(text[:end]))
		text = text[end:]
	}
	return all
}

const blanks = " \t\n\r\v\f"

func unquote(p string) string {
	if whole, ok := strings.CutPrefix(p, `"`); ok {
		return strings.TrimSuffix(whole, `"`)
	}
	if name, value, ok := strings.Cut(p, `="`); ok {
		return name + "=" + strings.TrimSuffix(value, `"`)
	}
	return p
}

// Address is where the agent listens: a path, or else a port of vsock.
type Address struct {
	Path      string
	CID, Port uint32
}

// anyCID is the address that stands for all of a machine's.
const anyCID = math.MaxUint32

// longestPath is how long a socket's path may be.
const longestPath = 107

// ParseAddress parses unix:///PATH and vsock://CID:PORT, where -1 is any CID.
func ParseAddress(s string) (Address, error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		if !strings.HasPrefix(path, "/") || len(path) > longestPath || strings.ContainsRune(path, 0) {
			return Address{}, invalid.Errorf("address %q: unix:///PATH is wanted, of at most %d bytes", clip(s), longestPath)
		}
		return Address{Path: path}, nil
	}
	rest, ok := strings.CutPrefix(s, "vsock://")
	if !ok {
		return Address{}, invalid.Errorf("address %q: unix:///PATH or vsock://CID:PORT is wanted", clip(s))
	}
	host, service, err := net.SplitHostPort(rest)
	if err != nil {
		return Address{}, invalid.Errorf("address %q: vsock://CID:PORT is wanted", clip(s))
	}
	a := Address{CID: anyCID}
	if host != "-1" {
		cid, err := strconv.ParseUint(host, 10, 32)
		if err != nil {
			return Address{}, invalid.Errorf("address %q: a CID is a number, or -1 for any", clip(s))
		}
		a.CID = uint32(cid)
	}
	if a.Port, err = toPort(service); err != nil {
		return Address{}, fmt.Errorf("address %q: %w", clip(s), err)
	}
	return a, nil
}

// String is the address as ParseAddress takes it.
func (a Address) String() string {
	if a.Path != "" {
		return "unix://" + a.Path
	}
	cid := "-1"
	if a.CID != anyCID {
		cid = strconv.FormatUint(uint64(a.CID), 10)
	}
	return "vsock://" + cid + ":" + strconv.FormatUint(uint64(a.Port), 10)
}

// clip shortens foreign text for messages.
func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
