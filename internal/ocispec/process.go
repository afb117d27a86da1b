package ocispec

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

const nonblock = unix.O_NONBLOCK | unix.O_NOCTTY

// DefaultPath is the PATH of a container if its image sets none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Command merges a request's command line with an image's, as Docker does: an
// entrypoint asked for drops the image's command too, a command asked for
// replaces the image's. nil means not asked for; an empty entrypoint clears it.
// InvalidArgument when nothing is left to run.
func Command(img *imagespec.ImageConfig, entrypoint, cmd []string) ([]string, error) {
	if img == nil {
		img = &imagespec.ImageConfig{}
	}
	if entrypoint == nil {
		entrypoint = img.Entrypoint
		if len(cmd) == 0 {
			cmd = img.Cmd
		}
	}
	args := slices.Concat(entrypoint, cmd)
	if len(args) == 0 || args[0] == "" {
		return nil, fmt.Errorf("no command, neither asked for nor in the image: %w", errdefs.ErrInvalidArgument)
	}
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return nil, fmt.Errorf("NUL in the command: %w", errdefs.ErrInvalidArgument)
		}
	}
	return args, nil
}

// Env puts lists of NAME=value over each other, later over earlier. A name keeps
// the place where it was last set; entries without a name or "=" are dropped.
func Env(lists ...[]string) []string {
	var order []string
	last := map[string]int{}
	for _, l := range lists {
		for _, entry := range l {
			name, _, ok := strings.Cut(entry, "=")
			if !ok || name == "" || strings.ContainsRune(entry, 0) {
				continue
			}
			if i, ok := last[name]; ok {
				order[i] = ""
			}
			last[name] = len(order)
			order = append(order, entry)
		}
	}
	return slices.DeleteFunc(order, func(s string) bool { return s == "" })
}

// BaseEnv has variables that programs expect and images often do not set.
func BaseEnv(home, hostname string, tty bool) []string {
	env := []string{"PATH=" + DefaultPath, "HOME=" + home}
	if hostname != "" {
		env = append(env, "HOSTNAME="+hostname)
	}
	if tty {
		env = append(env, "TERM=xterm")
	}
	return env
}

// WorkingDir is the directory asked for, else the image's, else /.
// InvalidArgument when it is not absolute.
func WorkingDir(img *imagespec.ImageConfig, asked string) (string, error) {
	if asked == "" && img != nil {
		asked = img.WorkingDir
		if asked != "" {
			asked = path.Clean("/" + asked)
		}
	}
	if asked == "" {
		return "/", nil
	}
	if !path.IsAbs(asked) || strings.ContainsRune(asked, 0) {
		return "", fmt.Errorf("working directory %q is not absolute: %w", asked, errdefs.ErrInvalidArgument)
	}
	return path.Clean(asked), nil
}

// Volumes lists the directories that an image declares as volumes, absolute, clean and sorted; the
// root itself and names with a NUL are left out.
func Volumes(img *imagespec.ImageConfig) []string {
	if img == nil {
		return nil
	}
	var out []string
	for v := range img.Volumes {
		if v = path.Clean("/" + v); v != "/" && !strings.ContainsRune(v, 0) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Signal reads "SIGTERM", "term", "15", "RTMIN+3", "SIGRTMAX-1". InvalidArgument
// when there is no such signal.
func Signal(s string) (int, error) {
	bad := fmt.Errorf("no signal %q: %w", s, errdefs.ErrInvalidArgument)
	const rtmin, rtmax = 34, 64 // as libc has them: it keeps the first two
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > rtmax || s[0] == '+' {
			return 0, bad
		}
		return n, nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n := unix.SignalNum("SIG" + name); n != 0 {
		return int(n), nil
	}
	var base, n int
	var offset string
	switch {
	case strings.HasPrefix(name, "RTMIN"):
		base, offset = rtmin, name[len("RTMIN"):]
	case strings.HasPrefix(name, "RTMAX"):
		base, offset = rtmax, name[len("RTMAX"):]
	default:
		return 0, bad
	}
	if offset != "" {
		want := byte('+')
		if base == rtmax {
			want = '-'
		}
		v, err := strconv.ParseUint(offset[1:], 10, 8)
		if offset[0] != want || err != nil {
			return 0, bad
		}
		if n = int(v); want == '-' {
			n = -n
		}
	}
	if n += base; n < rtmin || n > rtmax {
		return 0, bad
	}
	return n, nil
}
