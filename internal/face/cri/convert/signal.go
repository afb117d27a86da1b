package convert

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// The real-time signals as programs see them: glibc and musl keep the kernel's
// first two for themselves.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// SignalName is how the engine takes a stop signal; "" is the image's own.
func SignalName(s v1.Signal) (string, error) {
	if s == v1.Signal_SIGNAL_RUNTIME_DEFAULT {
		return "", nil
	}
	n := SignalNumber(s)
	if n == 0 {
		return "", invalid.Errorf("container: stop signal %d", s)
	}
	return strconv.Itoa(n), nil
}

// SignalNumber returns 0 for an unknown signal.
func SignalNumber(s v1.Signal) int {
	if _, ok := v1.Signal_name[int32(s)]; !ok {
		return 0
	}
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	if after, ok := strings.CutPrefix(name, "SIGRTMINPLUS"); ok {
		return offset(sigRTMin, after, 1)
	}
	if after, ok := strings.CutPrefix(name, "SIGRTMAXMINUS"); ok {
		return offset(sigRTMax, after, -1)
	}
	switch name {
	case "SIGRTMIN":
		return sigRTMin
	case "SIGRTMAX":
		return sigRTMax
	case "SIGCLD":
		return int(unix.SIGCHLD)
	case "SIGPOLL":
		return int(unix.SIGIO)
	case "SIGIOT":
		return int(unix.SIGABRT)
	}
	return int(unix.SignalNum(name))
}

func offset(base int, n string, sign int) int {
	v, err := strconv.Atoi(n)
	if err != nil {
		return 0
	}
	return base + sign*v
}

// StopSignal returns a container's stop signal for its status: of is a name, with SIG or without,
// or a number; SIGTERM if it is empty.
func StopSignal(of string) v1.Signal {
	name := strings.ToUpper(strings.TrimSpace(of))
	if name == "" {
		return v1.Signal_SIGNAL_SIGTERM
	}
	if n, err := strconv.Atoi(name); err == nil {
		for i := range int32(len(v1.Signal_name)) {
			if s := v1.Signal(i); SignalNumber(s) == n {
				return s
			}
		}
		return v1.Signal_SIGNAL_SIGTERM
	}
	// Every status comes by here: a strings.Replacer would cost more than all else of it.
	name = strings.ReplaceAll(strings.ReplaceAll(strings.TrimPrefix(name, "SIG"), "+", "PLUS"), "-", "MINUS")
	if s, ok := v1.Signal_value["SIGNAL_SIG"+name]; ok {
		return v1.Signal(s)
	}
	return v1.Signal_SIGNAL_SIGTERM
}
