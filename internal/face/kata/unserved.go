package kata

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// refusals answers the calls that this agent does not serve.
type refusals struct{}

// MemAgentMemcgSet answers as the reference with its memory agent off.
func (refusals) MemAgentMemcgSet(context.Context, *katav1.MemAgentMemcgConfig) (*emptypb.Empty, error) {
	return nil, refuse(codes.Internal, "mem-agent is disabled")
}

// MemAgentCompactSet answers as MemAgentMemcgSet.
func (refusals) MemAgentCompactSet(context.Context, *katav1.MemAgentCompactConfig) (*emptypb.Empty, error) {
	return nil, refuse(codes.Internal, "mem-agent is disabled")
}
