package cri

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/grpcerr"
)

// rpc is one call of either service, as the bytes of a request reach it: without a socket, and
// without the recovery of panics.
type rpc struct {
	name    string
	request protoreflect.MessageType
	unary   grpc.MethodHandler
	stream  grpc.StreamHandler
}

// rpcs are all calls of both services, sorted.
func rpcs(tb testing.TB) (all []rpc) {
	tb.Helper()
	for _, d := range []grpc.ServiceDesc{v1.RuntimeService_ServiceDesc, v1.ImageService_ServiceDesc} {
		handlers := map[string]rpc{}
		for _, m := range d.Methods {
			handlers[m.MethodName] = rpc{unary: m.Handler}
		}
		for _, m := range d.Streams {
			handlers[m.StreamName] = rpc{stream: m.Handler}
		}
		desc, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(d.ServiceName))
		if err != nil {
			tb.Fatal(err)
		}
		methods := desc.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			m := methods.Get(i)
			c := handlers[string(m.Name())]
			c.name = strings.TrimPrefix(d.ServiceName, "runtime.v1.") + "/" + string(m.Name())
			if c.request, err = protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName()); err != nil {
				tb.Fatal(err)
			}
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b rpc) int { return strings.Compare(a.name, b.name) })
	return all
}

// call sends the server a request as over the wire. It returns the answers, which must be such as
// can be sent.
func (n *testNode) call(ctx context.Context, c rpc, req proto.Message) ([]proto.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unary, stream := grpcerr.Interceptors(grpcError)
	out := &answers{ctx: ctx, cancel: cancel, req: req}
	if c.stream != nil {
		err := stream(n.face.server, out, nil, c.stream)
		return out.sent, err
	}
	resp, err := c.unary(n.face.server, ctx, func(m any) error { proto.Merge(m.(proto.Message), req); return nil }, unary)
	if err != nil {
		return nil, err
	}
	return []proto.Message{resp.(proto.Message)}, nil
}

// answers is the server's end of a stream to a client that leaves after a few messages.
type answers struct {
	ctx    context.Context //nolint:containedctx // a grpc.ServerStream carries it
	cancel context.CancelFunc
	req    proto.Message
	sent   []proto.Message
}

// patience is how many messages the client takes: as many as there are objects on
// the fuzz target's node.
const patience = 3

func (a *answers) Context() context.Context     { return a.ctx }
func (a *answers) SetHeader(metadata.MD) error  { return nil }
func (a *answers) SendHeader(metadata.MD) error { return nil }
func (a *answers) SetTrailer(metadata.MD)       {}

func (a *answers) RecvMsg(m any) error {
	proto.Merge(m.(proto.Message), a.req)
	return nil
}

func (a *answers) SendMsg(m any) error {
	a.sent = append(a.sent, proto.Clone(m.(proto.Message)))
	if len(a.sent) == patience {
		a.cancel()
	}
	return nil
}

// setIDs writes an ID into every field of a request that names an object of the
// given kind.
func setIDs(m protoreflect.Message, id func(kind, said string) string) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() || fd.IsList():
		case fd.Kind() == protoreflect.MessageKind:
			setIDs(v.Message(), id)
		case fd.Kind() == protoreflect.StringKind && strings.HasSuffix(string(fd.Name()), "_id"):
			m.Set(fd, protoreflect.ValueOfString(id(string(fd.Name()), v.String())))
		}
		return true
	})
}

// TestEveryCallGivesItsCodes makes each call with nothing and with an unknown ID: kubelet and
// crictl tell these two by their codes, and rely on stopping and removing missing objects.
func TestEveryCallGivesItsCodes(t *testing.T) {
	const (
		fine    = codes.OK
		invalid = codes.InvalidArgument
		missing = codes.NotFound
		refused = codes.Unimplemented
	)
	want := map[string][2]codes.Code{ // of nothing, of an unknown ID
		"ImageService/ImageFsInfo":                 {fine, fine},
		"ImageService/ImageStatus":                 {invalid, fine},
		"ImageService/ListImages":                  {fine, fine},
		"ImageService/ListSecurityProfiles":        {fine, fine},
		"ImageService/PullImage":                   {invalid, missing},
		"ImageService/PullSecurityProfile":         {invalid, fine},
		"ImageService/RemoveImage":                 {invalid, fine},
		"ImageService/RemoveSecurityProfile":       {invalid, fine},
		"ImageService/StreamImages":                {fine, fine},
		"RuntimeService/Attach":                    {invalid, missing},
		"RuntimeService/CheckpointContainer":       {refused, refused},
		"RuntimeService/CheckpointPod":             {refused, refused},
		"RuntimeService/ContainerStats":            {invalid, missing},
		"RuntimeService/ContainerStatus":           {invalid, missing},
		"RuntimeService/CreateContainer":           {invalid, missing},
		"RuntimeService/Exec":                      {invalid, missing},
		"RuntimeService/ExecSync":                  {invalid, missing},
		"RuntimeService/ListContainerStats":        {fine, fine},
		"RuntimeService/ListContainers":            {fine, fine},
		"RuntimeService/ListMetricDescriptors":     {fine, fine},
		"RuntimeService/ListPodSandbox":            {fine, fine},
		"RuntimeService/ListPodSandboxMetrics":     {fine, fine},
		"RuntimeService/ListPodSandboxStats":       {fine, fine},
		"RuntimeService/PodSandboxStats":           {invalid, missing},
		"RuntimeService/PodSandboxStatus":          {invalid, missing},
		"RuntimeService/PortForward":               {invalid, missing},
		"RuntimeService/RemoveContainer":           {invalid, fine},
		"RuntimeService/RemovePodSandbox":          {invalid, fine},
		"RuntimeService/ReopenContainerLog":        {invalid, missing},
		"RuntimeService/RestorePod":                {refused, refused},
		"RuntimeService/RunPodSandbox":             {invalid, fine},
		"RuntimeService/RuntimeConfig":             {fine, fine},
		"RuntimeService/StartContainer":            {invalid, missing},
		"RuntimeService/Status":                    {fine, fine},
		"RuntimeService/StopContainer":             {invalid, fine},
		"RuntimeService/StopPodSandbox":            {invalid, fine},
		"RuntimeService/StreamContainerStats":      {fine, fine},
		"RuntimeService/StreamContainers":          {fine, fine},
		"RuntimeService/StreamPodSandboxMetrics":   {fine, fine},
		"RuntimeService/StreamPodSandboxStats":     {fine, fine},
		"RuntimeService/StreamPodSandboxes":        {fine, fine},
		"RuntimeService/UpdateContainerResources":  {invalid, missing},
		"RuntimeService/UpdatePodSandboxResources": {invalid, missing},
		"RuntimeService/UpdateRuntimeConfig":       {fine, fine},
		"RuntimeService/Version":                   {fine, fine},
	}
	n := newTestNode(t)
	good := n.requests()
	all := rpcs(t)
	for _, c := range all {
		if c.name == "RuntimeService/GetContainerEvents" {
			continue // asks for nothing, and never ends
		}
		w, ok := want[c.name]
		if !ok {
			t.Errorf("%s is not in the table", c.name)
			continue
		}
		_, err := n.call(t.Context(), c, c.request.New().Interface())
		wantCode(t, c.name+" of nothing", err, w[0])
		for _, unknown := range []string{strings.Repeat("0", 64), "0000", "../../x", "a b\x00c"} {
			req := proto.Clone(good[c.name])
			setIDs(req.ProtoReflect(), func(string, string) string { return unknown })
			_, err := n.call(t.Context(), c, req)
			wantCode(t, c.name+" of "+unknown, err, w[1])
		}
	}
	if len(want) != len(all)-1 {
		t.Errorf("the table has %d calls, the services %d", len(want), len(all))
	}
}

// requests is a whole request of every call. IDs in them are words that objects
// of the fuzz target's node go by.
func (n *testNode) requests() map[string]proto.Message {
	pod, run := "pod", "run"
	made := n.containerRequest(pod, "new")
	made.SandboxConfig = n.podConfig("p")
	limits := &v1.LinuxContainerResources{CpuShares: 10, MemoryLimitInBytes: 1 << 20, Unified: map[string]string{"memory.high": "1"}}
	gone := &v1.ImageSpec{Image: "gone:1", Annotations: map[string]string{"a": "b"}}
	return map[string]proto.Message{
		"ImageService/ImageFsInfo":               &v1.ImageFsInfoRequest{},
		"ImageService/ImageStatus":               &v1.ImageStatusRequest{Image: gone, Verbose: true},
		"ImageService/ListImages":                &v1.ListImagesRequest{Filter: &v1.ImageFilter{Image: gone}},
		"ImageService/PullImage":                 &v1.PullImageRequest{Image: gone, Auth: &v1.AuthConfig{Auth: "dTpw", ServerAddress: "https://r.example/v1"}},
		"ImageService/ListSecurityProfiles":      &v1.ListSecurityProfilesRequest{},
		"ImageService/PullSecurityProfile":       &v1.PullSecurityProfileRequest{Image: &v1.ImageSpec{Image: profileRef}, ProfileKind: v1.SecurityProfileKind_Seccomp},
		"ImageService/RemoveSecurityProfile":     &v1.RemoveSecurityProfileRequest{Digest: "sha256:" + strings.Repeat("0", 64)},
		"ImageService/RemoveImage":               &v1.RemoveImageRequest{Image: gone},
		"ImageService/StreamImages":              &v1.StreamImagesRequest{Filter: &v1.ImageFilter{}},
		"RuntimeService/Attach":                  &v1.AttachRequest{ContainerId: run, Stdout: true, Stdin: true},
		"RuntimeService/CheckpointContainer":     &v1.CheckpointContainerRequest{ContainerId: run, Location: "/x.tar"},
		"RuntimeService/CheckpointPod":           &v1.CheckpointPodRequest{},
		"RuntimeService/ContainerStats":          &v1.ContainerStatsRequest{ContainerId: run},
		"RuntimeService/ContainerStatus":         &v1.ContainerStatusRequest{ContainerId: run, Verbose: true},
		"RuntimeService/CreateContainer":         made,
		"RuntimeService/Exec":                    &v1.ExecRequest{ContainerId: run, Cmd: []string{"sh"}, Stdout: true},
		"RuntimeService/ExecSync":                &v1.ExecSyncRequest{ContainerId: run, Cmd: []string{"say"}, Timeout: 1},
		"RuntimeService/GetContainerEvents":      &v1.GetEventsRequest{},
		"RuntimeService/ListContainerStats":      &v1.ListContainerStatsRequest{Filter: &v1.ContainerStatsFilter{Id: run, PodSandboxId: pod}},
		"RuntimeService/ListContainers":          &v1.ListContainersRequest{Filter: &v1.ContainerFilter{Id: run, LabelSelector: map[string]string{"a": "b"}}},
		"RuntimeService/ListMetricDescriptors":   &v1.ListMetricDescriptorsRequest{},
		"RuntimeService/ListPodSandbox":          &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{Id: pod}},
		"RuntimeService/ListPodSandboxMetrics":   &v1.ListPodSandboxMetricsRequest{},
		"RuntimeService/ListPodSandboxStats":     &v1.ListPodSandboxStatsRequest{Filter: &v1.PodSandboxStatsFilter{Id: pod}},
		"RuntimeService/PodSandboxStats":         &v1.PodSandboxStatsRequest{PodSandboxId: pod},
		"RuntimeService/PodSandboxStatus":        &v1.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true},
		"RuntimeService/PortForward":             &v1.PortForwardRequest{PodSandboxId: pod, Port: []int32{80}},
		"RuntimeService/RemoveContainer":         &v1.RemoveContainerRequest{ContainerId: run},
		"RuntimeService/RemovePodSandbox":        &v1.RemovePodSandboxRequest{PodSandboxId: pod},
		"RuntimeService/ReopenContainerLog":      &v1.ReopenContainerLogRequest{ContainerId: run},
		"RuntimeService/RestorePod":              &v1.RestorePodRequest{},
		"RuntimeService/RunPodSandbox":           &v1.RunPodSandboxRequest{Config: n.podConfig("new")},
		"RuntimeService/RuntimeConfig":           &v1.RuntimeConfigRequest{},
		"RuntimeService/StartContainer":          &v1.StartContainerRequest{ContainerId: "made"},
		"RuntimeService/Status":                  &v1.StatusRequest{Verbose: true},
		"RuntimeService/StopContainer":           &v1.StopContainerRequest{ContainerId: run, Timeout: 1},
		"RuntimeService/StopPodSandbox":          &v1.StopPodSandboxRequest{PodSandboxId: pod},
		"RuntimeService/StreamContainerStats":    &v1.StreamContainerStatsRequest{},
		"RuntimeService/StreamContainers":        &v1.StreamContainersRequest{},
		"RuntimeService/StreamPodSandboxMetrics": &v1.StreamPodSandboxMetricsRequest{},
		"RuntimeService/StreamPodSandboxStats":   &v1.StreamPodSandboxStatsRequest{},
		"RuntimeService/StreamPodSandboxes":      &v1.StreamPodSandboxesRequest{},
		"RuntimeService/UpdateContainerResources": &v1.UpdateContainerResourcesRequest{
			ContainerId: run, Linux: limits, Annotations: map[string]string{"a": "b"},
		},
		"RuntimeService/UpdatePodSandboxResources": &v1.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Overhead: limits, Resources: limits},
		"RuntimeService/UpdateRuntimeConfig": &v1.UpdateRuntimeConfigRequest{
			RuntimeConfig: &v1.RuntimeConfig{NetworkConfig: &v1.NetworkConfig{PodCidr: "10.9.0.0/24"}},
		},
		"RuntimeService/Version": &v1.VersionRequest{Version: "0.1.0"},
	}
}
