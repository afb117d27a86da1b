package kata

import (
	"context"
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

const (
	// terminationLog is the one kind of diagnostic data that there is.
	terminationLog = "termination_log"
	// terminationPath is the annotation that says where a container writes why it ended.
	terminationPath = "io.kubernetes.container.terminationMessagePath"
)

// terminationFile returns the guest's file for a container's termination message, "" if it has
// none: the source of the mount at the path of an annotation.
func terminationFile(s *specs.Spec) string {
	at := s.Annotations[terminationPath]
	for _, m := range s.Mounts {
		if at != "" && path.Clean(m.Destination) == path.Clean(at) {
			return m.Source
		}
	}
	return ""
}

// GetDiagnosticData implements katav1.AgentServiceService.
func (s *service) GetDiagnosticData(ctx context.Context, req *katav1.GetDiagnosticDataRequest) (*katav1.GetDiagnosticDataResponse, error) {
	if req.GetLogType() != terminationLog {
		return nil, refuse(codes.InvalidArgument, "diagnostic data %q: there is %s only", clip(req.GetLogType()), terminationLog)
	}
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	file := recordOf(&ct).TerminationFile
	if file == "" {
		return &katav1.GetDiagnosticDataResponse{}, nil
	}
	text, err := s.face.o.Machine.Head(file)
	if err != nil {
		return nil, err
	}
	return &katav1.GetDiagnosticDataResponse{Data: text}, nil
}
