package hub_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/wiretest"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// TestUnknownValuesOfEnumsAreRefusedInStreams sets each enum of each request of a streaming call that nodes
// make to a value above its last.
func TestUnknownValuesOfEnumsAreRefusedInStreams(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	found := map[string]int{}
	for _, file := range []protoreflect.FileDescriptor{swarmv1.File_swarm_v1_dispatcher_proto, swarmv1.File_swarm_v1_logbroker_proto} {
		services := file.Services()
		for i := range services.Len() {
			if services.Get(i).Name() == "Logs" {
				continue // the operators' call of swarmkit; the hub has its own API instead
			}
			methods := services.Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				if !m.IsStreamingClient() && !m.IsStreamingServer() {
					continue
				}
				mt, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
				if err != nil {
					t.Fatal(err)
				}
				path := "/" + string(services.Get(i).FullName()) + "/" + string(m.Name())
				call := func(req proto.Message) error {
					stream, err := n.Conn.NewStream(hubtest.Within(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, path)
					if err != nil {
						t.Fatal(err)
					}
					if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
					if err := stream.CloseSend(); err != nil {
						t.Fatal(err)
					}
					return stream.RecvMsg(new(swarmv1.SessionMessage))
				}
				found[string(m.Name())] = wiretest.UnknownEnums(t, mt, func(at string, req proto.Message) {
					hubtest.Wants(t, path+" with "+at, call(req), codes.InvalidArgument, "that this version knows")
					hubtest.Wants(t, path+" with "+at, call(req), codes.InvalidArgument, at[strings.LastIndexByte(at, '.')+1:])
				})
			}
		}
	}
	t.Logf("enums by call: %v", found)
	if found["PublishLogs"] == 0 {
		t.Error("no enum was found, so this test sees no fault")
	}
	// The connection and its sessions still work.
	if a := hubtest.MustOpen(t, n, ""); a.First.GetSessionId() == "" {
		t.Error("no session")
	}
}
