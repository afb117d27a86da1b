package cri

import (
	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/invalid"
)

// execRequest translates a request. InvalidArgument if no client could attach to its streams.
func execRequest(req *v1.ExecRequest) (stream.Request, error) {
	r := stream.Request{
		Kind: stream.KindExec, ID: req.GetContainerId(), Args: req.GetCmd(),
		Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty(),
	}
	if len(r.Args) == 0 {
		return r, invalid.Errorf("exec in container %s: no command", r.ID)
	}
	return r, checkStreams(r)
}

// attachRequest is as execRequest.
func attachRequest(req *v1.AttachRequest) (stream.Request, error) {
	r := stream.Request{
		Kind: stream.KindAttach, ID: req.GetContainerId(),
		Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty(),
	}
	return r, checkStreams(r)
}

func checkStreams(r stream.Request) error {
	switch {
	case r.TTY && r.Stderr:
		return invalid.Errorf("%s: a terminal has no stderr of its own", r.Kind)
	case !r.Stdin && !r.Stdout && !r.Stderr:
		return invalid.Errorf("%s: one of stdin, stdout and stderr must be asked for", r.Kind)
	default:
		return nil
	}
}

// forwardRequest is as execRequest.
func forwardRequest(req *v1.PortForwardRequest) (stream.Request, error) {
	r := stream.Request{Kind: stream.KindPortForward, ID: req.GetPodSandboxId()}
	for _, p := range req.GetPort() {
		if p < 1 || p > 65535 {
			return r, invalid.Errorf("port forward: port %d", p)
		}
		r.Ports = append(r.Ports, uint16(p))
	}
	return r, nil
}
