package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/subprocess"
)

// The kernel's old packet filter has its rules beside nftables, and reports no changes of them.
// This file exists, with these tables, only where someone loaded it.
const legacyTables = "/proc/thread-self/net/ip_tables_names"

// openLegacy is Wall.open for the FORWARD chain of the legacy filter. Only iptables-legacy can
// change that filter; it is executed only if the filter is in use.
func openLegacy(bridge string) error {
	if !legacyInUse() {
		return nil
	}
	list, err := iptablesLegacy("-S", "FORWARD")
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("the old iptables filter is in use and iptables-legacy is not installed: cannot see whether it drops what interface %s forwards", bridge)
	}
	if err != nil {
		return err
	}
	for _, args := range legacyMissing(string(list), bridge) {
		if _, err := iptablesLegacy(args...); err != nil {
			return err
		}
	}
	return nil
}

// legacyInUse reports whether the old filter is loaded.
func legacyInUse() bool {
	names, err := os.ReadFile(legacyTables)
	return err == nil && bytes.Contains(names, []byte("filter"))
}

func iptablesLegacy(args ...string) ([]byte, error) {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("iptables-legacy does not answer"))
	defer cancel()
	out, stderr := &subprocess.Head{Max: 4 << 20}, &subprocess.Head{Max: 4 << 10}
	cmd := subprocess.Command(ctx, "iptables-legacy", append([]string{"-w"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, stderr
	err := subprocess.Run(ctx, cmd)
	if err == nil && out.Truncated() {
		err = errors.New("it wrote more than 4 MiB")
	}
	if err != nil {
		return nil, fmt.Errorf("iptables-legacy %s: %w: %s", strings.Join(args, " "), err, stderr.Line())
	}
	return out.Bytes(), nil
}

// legacyMissing parses iptables -S FORWARD and returns the commands that let the bridge through.
func legacyMissing(list, bridge string) [][]string {
	drops, rules, end := false, 0, 0
	accepts := map[string]int{"-i": 0, "-o": 0}
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if line == "-P FORWARD DROP" {
			drops = true
		}
		rest, ok := strings.CutPrefix(line, "-A FORWARD ")
		if !ok {
			continue
		}
		rules++
		for flag := range accepts {
			if rest == flag+" "+bridge+" -j ACCEPT" && accepts[flag] == 0 && end == 0 {
				accepts[flag] = rules
			}
		}
		if end == 0 && (rest == "-j DROP" || strings.HasPrefix(rest, "-j REJECT")) {
			end, drops = rules, true
		}
	}
	if !drops {
		return nil
	}
	var cmds [][]string
	for _, flag := range []string{"-i", "-o"} {
		switch {
		case accepts[flag] > 0:
		case end > 0:
			cmds = append(cmds, []string{"-I", "FORWARD", strconv.Itoa(end), flag, bridge, "-j", "ACCEPT"})
		default:
			cmds = append(cmds, []string{"-A", "FORWARD", flag, bridge, "-j", "ACCEPT"})
		}
	}
	return cmds
}
