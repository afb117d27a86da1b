package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
)

// maxAnswer is the size of the largest message accepted from the agent, in bytes: a list of all objects.
const maxAnswer = 64 << 20

// idleTime is the time after which a connection to the agent without calls is closed.
const idleTime = 10 * time.Second

// Dial returns a connection to the control socket at path. It is open only while there are calls.
func Dial(path string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(idleTime),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithReadBufferSize(8<<10))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// gated is a connection to the agent. Without actions it refuses calls that change something, as a second barrier behind the handlers.
// It names the user of the page to the agent.
type gated struct {
	conn     grpc.ClientConnInterface
	readOnly bool
}

var errReadOnly = status.Error(codes.PermissionDenied, "this page only reads: start it with --actions, or set ui.actions")

func (g gated) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if g.readOnly && !access.Reads(method) {
		return errReadOnly
	}
	return g.conn.Invoke(forUser(ctx), method, args, reply, opts...)
}

func (g gated) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if g.readOnly && !access.Reads(method) {
		return nil, errReadOnly
	}
	return g.conn.NewStream(forUser(ctx), desc, method, opts...)
}

// forUser adds the user of the page to the metadata of a call, for events and the records of ends.
func forUser(ctx context.Context) context.Context {
	if user := userOf(ctx); user != "" {
		return metadata.AppendToOutgoingContext(ctx, access.Via, user)
	}
	return ctx
}

// api has the clients of the control API's services.
type api struct {
	containers longshorev1.ContainersClient
	images     longshorev1.ImagesClient
	volumes    longshorev1.VolumesClient
	networks   longshorev1.NetworksClient
	node       longshorev1.NodeClient
}

func newAPI(c grpc.ClientConnInterface) api {
	return api{
		longshorev1.NewContainersClient(c), longshorev1.NewImagesClient(c), longshorev1.NewVolumesClient(c), longshorev1.NewNetworksClient(c), longshorev1.NewNodeClient(c),
	}
}

// requestError is a request that the page does not serve.
type requestError struct {
	code int
	text string
}

func (e requestError) Error() string { return e.text }

// fail answers with an error. If the answer has begun, the client sees a broken one.
func fail(w http.ResponseWriter, err error) {
	var bad requestError
	if errors.As(err, &bad) {
		http.Error(w, bad.text, bad.code)
		return
	}
	code := http.StatusInternalServerError
	st, _ := status.FromError(err)
	switch st.Code() {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.InvalidArgument, codes.OutOfRange:
		code = http.StatusBadRequest
	case codes.PermissionDenied:
		code = http.StatusForbidden
	case codes.FailedPrecondition, codes.AlreadyExists, codes.Aborted:
		code = http.StatusConflict
	case codes.Unimplemented:
		code = http.StatusNotImplemented
	case codes.Unavailable:
		code = http.StatusServiceUnavailable
	case codes.OK, codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.DataLoss, codes.Unauthenticated:
	}
	http.Error(w, st.Message(), code)
}

// plain is the form of messages in answers.
var plain = protojson.MarshalOptions{}

// write answers with the messages, by their names.
func write(w http.ResponseWriter, parts map[string]any) error {
	out := map[string]json.RawMessage{}
	for name, v := range parts {
		var data []byte
		var err error
		switch v := v.(type) {
		case proto.Message:
			data, err = plain.Marshal(v)
		default:
			data, err = json.Marshal(v)
		}
		if err != nil {
			return err
		}
		out[name] = data
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(out)
}

// maxName bounds the name of an object in a request, in bytes.
const maxName = 4 << 10

// nameOf returns the parameter id of a request.
func nameOf(r *http.Request) (string, error) {
	name := r.URL.Query().Get("id")
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return "", requestError{http.StatusBadRequest, "the parameter id does not name an object"}
	}
	return name, nil
}

// number returns a number of the query between 0 and most.
func number(r *http.Request, key string, otherwise, most int64) (int64, error) {
	text := r.URL.Query().Get(key)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, requestError{http.StatusBadRequest, fmt.Sprintf("the parameter %s is not a number from 0 to %d", key, most)}
	}
	return n, nil
}

// node answers with the description of the node and the page's own settings.
func (s *Server) node(w http.ResponseWriter, r *http.Request) error {
	info, err := s.api.node.Info(r.Context(), &longshorev1.InfoRequest{})
	if err != nil {
		return err
	}
	return write(w, map[string]any{"info": info, "actions": s.o.Actions})
}

// doctor answers with doctor's findings. It starts no test container.
func (s *Server) doctor(w http.ResponseWriter, r *http.Request) error {
	resp, err := s.api.node.Doctor(r.Context(), &longshorev1.DoctorRequest{Passive: true})
	if err != nil {
		return err
	}
	return write(w, map[string]any{"findings": resp.GetFindings()})
}

// container answers with everything about a container but its logs and events.
func (s *Server) container(w http.ResponseWriter, r *http.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	why, err := s.api.containers.Why(r.Context(), &longshorev1.WhyRequest{Name: name})
	if err != nil {
		return err
	}
	parts := map[string]any{"why": why}
	// The agent shows the values of environment variables to callers that may do everything.
	show := s.o.Actions && r.URL.Query().Get("env") == "show"
	record, err := s.api.containers.Inspect(r.Context(), &longshorev1.InspectRequest{Name: why.GetContainer().GetId(), ShowEnv: show})
	switch {
	case err == nil && json.Valid(record.GetJson()):
		parts["record"] = json.RawMessage(record.GetJson())
	case err != nil && status.Code(err) != codes.NotFound: // it was removed; why still knows its end
		return err
	}
	return write(w, parts)
}

// top answers with the processes of a container.
func (s *Server) top(w http.ResponseWriter, r *http.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	resp, err := s.api.containers.Top(r.Context(), &longshorev1.TopRequest{Name: name})
	if err != nil {
		return err
	}
	return write(w, map[string]any{"top": resp})
}

// maxEvents bounds the events of one answer.
const maxEvents = 2000

// events answers with the last events of the log, of an object if the request names one.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	most, err := number(r, "n", 200, maxEvents)
	if err != nil {
		return err
	}
	req := &longshorev1.EventsRequest{SinceSeq: proto.Uint64(0)}
	if r.URL.Query().Has("id") {
		if req.Name, err = nameOf(r); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream, err := s.api.node.Events(ctx, req)
	if err != nil {
		return err
	}
	var last []event
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if last = append(last, eventOf(m.GetEvent())); int64(len(last)) > 2*most {
			last = append(last[:0], last[int64(len(last))-most:]...)
		}
	}
	if int64(len(last)) > most {
		last = last[int64(len(last))-most:]
	}
	return write(w, map[string]any{"events": last})
}

// images answers with the images of every owner.
func (s *Server) images(w http.ResponseWriter, r *http.Request) error {
	list, err := s.api.images.ListImages(r.Context(), &longshorev1.ListImagesRequest{})
	if err != nil {
		return err
	}
	usage, err := s.api.images.ImageUsage(r.Context(), &longshorev1.ImageUsageRequest{})
	if err != nil {
		return err
	}
	return write(w, map[string]any{"list": list, "usage": usage})
}

// networks answers with the networks that users have defined.
func (s *Server) networks(w http.ResponseWriter, r *http.Request) error {
	list, err := s.api.networks.ListNetworks(r.Context(), &longshorev1.ListNetworksRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented { // an agent without networks of users
		return err
	}
	return write(w, map[string]any{"list": list})
}

// volumes answers with the volumes of every owner.
func (s *Server) volumes(w http.ResponseWriter, r *http.Request) error {
	list, err := s.api.volumes.ListVolumes(r.Context(), &longshorev1.ListVolumesRequest{})
	if err != nil {
		return err
	}
	return write(w, map[string]any{"list": list})
}

// disk answers with the sizes of objects, which the agent measures.
func (s *Server) disk(w http.ResponseWriter, r *http.Request) error {
	usage, err := s.api.node.DiskUsage(r.Context(), &longshorev1.DiskUsageRequest{})
	if err != nil {
		return err
	}
	return write(w, map[string]any{"usage": usage})
}

// diskParts answers with the tree of disk usage. The agent reads its whole directory for it.
func (s *Server) diskParts(w http.ResponseWriter, r *http.Request) error {
	tree, err := s.api.node.DiskParts(r.Context(), &longshorev1.DiskPartsRequest{})
	if err != nil {
		return err
	}
	return write(w, map[string]any{"tree": tree})
}
