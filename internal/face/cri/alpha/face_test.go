package alpha_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/conformancetest"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/programs"
)

// testNode is the face over a fake node, and a client of the API of 2017.
type testNode struct {
	*enginetest.Node
	cri1alpha.RuntimeServiceClient
	images cri1alpha.ImageServiceClient
	conn   *grpc.ClientConn
	root   string
}

func newTestNode(tb testing.TB) *testNode {
	tb.Helper()
	n := &testNode{Node: enginetest.Fakes(tb), root: tb.TempDir()}
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	n.AddImage("redis:7", imagespec.ImageConfig{Cmd: []string{"serve"}}, nil)
	n.Supervisor.Program("serve", func(p *enginetest.Process) int {
		<-p.Killed
		return 0
	})
	cfg := cri.DefaultConfig()
	cfg.Alpha = cri.Alpha{Enabled: true, RootDirectory: n.root}
	store, err := programs.Open(filepath.Join(tb.TempDir(), "programs"))
	if err != nil {
		tb.Fatal(err)
	}
	f, err := cri.New(cri.Options{
		Deps:   face.Deps{Engine: n.As(core.OwnerCRI), Logger: slog.New(slog.DiscardHandler), Version: "v1.2.3"},
		Config: cfg, Alpha: n.As(core.OwnerCRIAlpha), Programs: store,
	})
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cri") // short enough for a socket's address
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	if n.conn, err = grpc.NewClient("unix://"+filepath.Join(dir, "s"), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		tb.Fatal(err)
	}
	n.RuntimeServiceClient, n.images = cri1alpha.NewRuntimeServiceClient(n.conn), cri1alpha.NewImageServiceClient(n.conn)
	tb.Cleanup(func() {
		_ = n.conn.Close()
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	return n
}

func podConfig(name string) *cri1alpha.PodSandboxConfig {
	return &cri1alpha.PodSandboxConfig{
		Metadata: &cri1alpha.PodSandboxMetadata{Name: name, Uid: "uid", Namespace: "ns", Attempt: 3},
		Labels:   map[string]string{"pod": name, "all": "yes"}, Annotations: map[string]string{"kept": "yes"},
	}
}

func (n *testNode) pod(tb testing.TB, name string) string {
	tb.Helper()
	r, err := n.RunPodSandbox(tb.Context(), &cri1alpha.RunPodSandboxRequest{Config: podConfig(name)})
	if err != nil {
		tb.Fatal(err)
	}
	return r.GetPodSandboxId()
}

func containerConfig(name string) *cri1alpha.ContainerConfig {
	return &cri1alpha.ContainerConfig{
		Metadata: &cri1alpha.ContainerMetadata{Name: name, Attempt: 4}, Image: &cri1alpha.ImageSpec{Image: "redis:7"},
		Labels: map[string]string{"container": name}, Annotations: map[string]string{"mine": "kept"},
	}
}

func (n *testNode) container(tb testing.TB, pod, name string) string {
	tb.Helper()
	r, err := n.CreateContainer(tb.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig(name)})
	if err != nil {
		tb.Fatal(err)
	}
	return r.GetContainerId()
}

func (n *testNode) running(tb testing.TB, pod, name string) string {
	tb.Helper()
	id := n.container(tb, pod, name)
	if _, err := n.StartContainer(tb.Context(), &cri1alpha.StartContainerRequest{ContainerId: id}); err != nil {
		tb.Fatal(err)
	}
	return id
}

func wantCode(t *testing.T, what string, err error, code codes.Code) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("%s: %v, want %v", what, err, code)
	}
}

// TestIdsAreNames: an id has its object's name, and no name can forge another's id.
func TestIdsAreNames(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "web")
	if want := "name=web,uid=uid,namespace=ns,attempt=3"; pod != want {
		t.Errorf("pod %q, want %q", pod, want)
	}
	id := n.container(t, pod, "app")
	if want := pod + "|name=app,attempt=4"; id != want {
		t.Errorf("container %q, want %q", id, want)
	}
	for _, bad := range []string{"a,b", "a=b", "a|b", "web,uid=uid", "a\x00b", ""} {
		for i := range 3 {
			cfg := podConfig("x")
			*[]*string{&cfg.Metadata.Name, &cfg.Metadata.Uid, &cfg.Metadata.Namespace}[i] = bad
			if bad == "" && i > 0 {
				continue
			}
			_, err := n.RunPodSandbox(t.Context(), &cri1alpha.RunPodSandboxRequest{Config: cfg})
			wantCode(t, "pod with "+bad, err, codes.InvalidArgument)
		}
		_, err := n.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig(bad)})
		wantCode(t, "container "+bad, err, codes.InvalidArgument)
	}
	for _, bad := range []string{"web", pod + " ", "name=web,uid=uid,namespace=ns,attempt=03", "uid=uid,name=web,namespace=ns,attempt=3", pod + "," + pod, pod + "|", id, strings.Repeat("0", 64)} {
		_, err := n.PodSandboxStatus(t.Context(), &cri1alpha.PodSandboxStatusRequest{PodSandboxId: bad})
		wantCode(t, "pod "+bad, err, codes.NotFound)
		if bad == id {
			continue
		}
		_, err = n.ContainerStatus(t.Context(), &cri1alpha.ContainerStatusRequest{ContainerId: bad})
		wantCode(t, "container "+bad, err, codes.NotFound)
	}
	// An id of v1 is not found here.
	all, err := n.As(core.OwnerCRIAlpha).Stored.Containers()
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	_, err = n.StopContainer(t.Context(), &cri1alpha.StopContainerRequest{ContainerId: string(all[0].ID)})
	wantCode(t, "stop of what is not there", err, codes.OK)
	_, err = n.ContainerStatus(t.Context(), &cri1alpha.ContainerStatusRequest{})
	wantCode(t, "no id", err, codes.InvalidArgument)
}

// TestTheFirstStays: the same names have the same id, and the config of the first call.
func TestTheFirstStays(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "web")
	other := podConfig("web")
	other.Hostname, other.Labels = "another", nil
	if r, err := n.RunPodSandbox(t.Context(), &cri1alpha.RunPodSandboxRequest{Config: other}); err != nil || r.GetPodSandboxId() != pod {
		t.Errorf("%v, %v", r, err)
	}
	st, err := n.PodSandboxStatus(t.Context(), &cri1alpha.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || st.GetStatus().GetLabels()["pod"] != "web" || st.GetStatus().GetAnnotations()["kept"] != "yes" || len(st.GetStatus().GetAnnotations()) != 1 {
		t.Errorf("%v, %v", st, err)
	}
	id := n.running(t, pod, "app")
	again := containerConfig("app")
	again.Image, again.Annotations = &cri1alpha.ImageSpec{Image: "not/there"}, nil
	if r, err := n.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: again}); err != nil || r.GetContainerId() != id {
		t.Errorf("%v, %v", r, err)
	}
	for range 2 {
		if _, err := n.StartContainer(t.Context(), &cri1alpha.StartContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	}
	const clients = 8
	ids, errs := make(chan string, clients), make(chan error, clients)
	for range clients {
		go func() {
			r, err := n.RunPodSandbox(t.Context(), &cri1alpha.RunPodSandboxRequest{Config: podConfig("many")})
			ids <- r.GetPodSandboxId()
			errs <- err
		}()
	}
	for range clients {
		if id, err := <-ids, <-errs; err != nil || id != "name=many,uid=uid,namespace=ns,attempt=3" {
			t.Errorf("%q, %v", id, err)
		}
	}
	if all, err := n.As(core.OwnerCRIAlpha).Stored.Sandboxes(); err != nil || len(all) != 2 {
		t.Errorf("%d sandboxes, %v", len(all), err)
	}
}

// TestFiltersAreJoined: all conditions of a filter must hold.
func TestFiltersAreJoined(t *testing.T) {
	n := newTestNode(t)
	one, two := n.pod(t, "one"), n.pod(t, "two")
	runs, made := n.running(t, one, "runs"), n.container(t, one, "made")
	other := n.container(t, two, "made")
	if _, err := n.StopPodSandbox(t.Context(), &cri1alpha.StopPodSandboxRequest{PodSandboxId: two}); err != nil {
		t.Fatal(err)
	}
	ready := &cri1alpha.PodSandboxStateValue{State: cri1alpha.PodSandboxState_SANDBOX_READY}
	for name, c := range map[string]struct {
		filter *cri1alpha.PodSandboxFilter
		want   []string
	}{
		"none":           {nil, []string{one, two}},
		"id":             {&cri1alpha.PodSandboxFilter{Id: two}, []string{two}},
		"part of an id":  {&cri1alpha.PodSandboxFilter{Id: "name=two"}, nil},
		"state":          {&cri1alpha.PodSandboxFilter{State: ready}, []string{one}},
		"labels":         {&cri1alpha.PodSandboxFilter{LabelSelector: map[string]string{"all": "yes"}}, []string{one, two}},
		"a second label": {&cri1alpha.PodSandboxFilter{LabelSelector: map[string]string{"all": "yes", "pod": "two"}}, []string{two}},
		"all":            {&cri1alpha.PodSandboxFilter{Id: two, State: ready, LabelSelector: map[string]string{"all": "yes"}}, nil},
	} {
		r, err := n.ListPodSandbox(t.Context(), &cri1alpha.ListPodSandboxRequest{Filter: c.filter})
		var got []string
		for _, p := range r.GetItems() {
			got = append(got, p.GetId())
		}
		if err != nil || strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("pods by %s: %q, %v, want %q", name, got, err, c.want)
		}
	}
	created := &cri1alpha.ContainerStateValue{State: cri1alpha.ContainerState_CONTAINER_CREATED}
	for name, c := range map[string]struct {
		filter *cri1alpha.ContainerFilter
		want   []string
	}{
		"none":        {nil, []string{runs, made, other}},
		"pod":         {&cri1alpha.ContainerFilter{PodSandboxId: one}, []string{runs, made}},
		"state":       {&cri1alpha.ContainerFilter{PodSandboxId: one, State: created}, []string{made}},
		"label":       {&cri1alpha.ContainerFilter{LabelSelector: map[string]string{"container": "made"}}, []string{made, other}},
		"id":          {&cri1alpha.ContainerFilter{Id: runs}, []string{runs}},
		"id, state":   {&cri1alpha.ContainerFilter{Id: runs, State: created}, nil},
		"another pod": {&cri1alpha.ContainerFilter{Id: runs, PodSandboxId: two}, nil},
	} {
		r, err := n.ListContainers(t.Context(), &cri1alpha.ListContainersRequest{Filter: c.filter})
		var got []string
		for _, c := range r.GetContainers() {
			got = append(got, c.GetId())
		}
		if err != nil || strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("containers by %s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// TestCallsOf2017 covers the remaining calls.
func TestCallsOf2017(t *testing.T) {
	n := newTestNode(t)
	v, err := n.Version(t.Context(), &cri1alpha.VersionRequest{Version: "0.1.0"})
	if want := (&cri1alpha.VersionResponse{Version: "0.1.0", RuntimeName: "longshore", RuntimeVersion: "1.2.3", RuntimeApiVersion: "v1alpha1"}); err != nil || !proto.Equal(v, want) {
		t.Errorf("%v, %v", v, err)
	}
	st, err := n.Status(t.Context(), &cri1alpha.StatusRequest{})
	if err != nil || len(st.GetStatus().GetConditions()) != 2 || st.GetStatus().GetConditions()[0].GetType() != "RuntimeReady" || !st.GetStatus().GetConditions()[0].GetStatus() {
		t.Errorf("%v, %v", st, err)
	}
	list, err := n.images.ListImages(t.Context(), &cri1alpha.ListImagesRequest{})
	if err != nil || len(list.GetImages()) != 1 || list.GetImages()[0].GetRepoTags()[0] != "docker.io/library/redis:7" && list.GetImages()[0].GetRepoTags()[0] != "docker.io/redis:7" {
		t.Errorf("%v, %v", list, err)
	}
	if r, err := n.images.ImageFsInfo(t.Context(), &cri1alpha.ImageFsInfoRequest{}); err != nil || len(r.GetImageFilesystems()) != 1 || r.GetImageFilesystems()[0].GetTimestamp() == 0 {
		t.Errorf("%v, %v", r, err)
	}
	cfg := podConfig("host")
	cfg.Hostname = "node" // as clients of the time send it
	cfg.Linux = &cri1alpha.LinuxPodSandboxConfig{SecurityContext: &cri1alpha.LinuxSandboxSecurityContext{NamespaceOptions: &cri1alpha.NamespaceOption{HostNetwork: true, HostPid: true}}}
	r, err := n.RunPodSandbox(t.Context(), &cri1alpha.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := n.PodSandboxStatus(t.Context(), &cri1alpha.PodSandboxStatusRequest{PodSandboxId: r.GetPodSandboxId()})
	if o := pod.GetStatus().GetLinux().GetNamespaces().GetOptions(); err != nil || !o.GetHostNetwork() || !o.GetHostPid() || o.GetHostIpc() {
		t.Errorf("%v, %v", pod, err)
	}
	id := n.running(t, r.GetPodSandboxId(), "c")
	if r, err := n.ContainerStats(t.Context(), &cri1alpha.ContainerStatsRequest{ContainerId: id}); err != nil || r.GetStats().GetAttributes().GetId() != id {
		t.Errorf("%v, %v", r, err)
	}
	bad := containerConfig("annotated")
	bad.Annotations = map[string]string{core.GrantAnnotation: "null"}
	_, err = n.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: r.GetPodSandboxId(), Config: bad})
	wantCode(t, "an annotation in place of argdata", err, codes.InvalidArgument)
}

// TestStreamsOf2017: a request that names no streams gets a URL for both.
func TestStreamsOf2017(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "web")
	id := n.running(t, pod, "app")
	url := regexp.MustCompile(`^http://127\.0\.0\.1:\d+/(exec|attach|portforward)/`)
	for _, tty := range []bool{false, true} {
		if r, err := n.Exec(t.Context(), &cri1alpha.ExecRequest{ContainerId: id, Cmd: []string{"x"}, Tty: tty}); err != nil || !url.MatchString(r.GetUrl()) {
			t.Errorf("%v, %v", r, err)
		}
		if r, err := n.Attach(t.Context(), &cri1alpha.AttachRequest{ContainerId: id, Tty: tty, Stdin: true}); err != nil || !url.MatchString(r.GetUrl()) {
			t.Errorf("%v, %v", r, err)
		}
	}
	_, err := n.Exec(t.Context(), &cri1alpha.ExecRequest{ContainerId: id, Cmd: []string{"x"}, Tty: true, Stderr: true})
	wantCode(t, "a terminal with stderr", err, codes.InvalidArgument)
	if r, err := n.PortForward(t.Context(), &cri1alpha.PortForwardRequest{PodSandboxId: pod, Port: []int32{80}}); err != nil || !url.MatchString(r.GetUrl()) {
		t.Errorf("%v, %v", r, err)
	}
	_, err = n.PortForward(t.Context(), &cri1alpha.PortForwardRequest{PodSandboxId: id})
	wantCode(t, "a container's id", err, codes.NotFound)
}

// calls are all calls of both services, with messages for them.
func calls() (all []protoreflect.MethodDescriptor) {
	services := cri1alpha.File_cri1alpha_cri1alpha_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			all = append(all, services.Get(i).Methods().Get(j))
		}
	}
	return all
}

// TestEveryCallOf2017HasARow compares docs/conformance.md with the services. The tests that it
// names exist.
func TestEveryCallOf2017HasARow(t *testing.T) {
	doc := conformancetest.Read(t, "../../../..")
	var code strings.Builder
	for _, pattern := range []string{"*_test.go", "../../../../test/cri/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(b)
		}
	}
	n := newTestNode(t)
	rows := regexp.MustCompile(`(?m)^\| (runtime\.\w+Service/\w+) \| (works|differs|refused) \| .* \| (.+) \|$`).FindAllStringSubmatch(doc, -1)
	have := map[string]bool{}
	for _, r := range rows {
		if have[r[1]] {
			t.Errorf("%s has two rows", r[1])
		}
		have[r[1]] = true
		for name := range strings.SplitSeq(r[3], ", ") {
			if name = name[strings.LastIndexByte(name, '/')+1:]; !strings.Contains(code.String(), "func "+name+"(") {
				t.Errorf("%s: there is no test %s", r[1], name)
			}
		}
	}
	for _, m := range calls() {
		name := string(m.Parent().FullName()) + "/" + string(m.Name())
		if !have[name] {
			t.Errorf("%s has no row", name)
		}
		delete(have, name)
		// None is left to the generated code.
		err := n.conn.Invoke(t.Context(), "/"+name, newMessage(m.Input()), newMessage(m.Output()))
		if status.Code(err) == codes.Unimplemented {
			t.Errorf("%s is not implemented", name)
		}
	}
	for name := range have {
		t.Errorf("%s is no call", name)
	}
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	return m.New().Interface()
}

// FuzzRequests gives any request of any call to a node with a pod, a container that runs and one that does not. No
// call panics, an error's code names the side at fault, and a create that fails leaves nothing.
func FuzzRequests(f *testing.F) {
	n := newTestNode(f)
	n.Supervisor.Program("say", func(*enginetest.Process) int { return 0 })
	all := calls()
	for i, m := range all {
		req := newMessage(m.Input())
		fill(req.ProtoReflect())
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), b)
	}
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		m := all[int(which)%len(all)]
		req, answer := newMessage(m.Input()), newMessage(m.Output())
		if proto.Unmarshal(b, req) != nil {
			return
		}
		if r, ok := req.(*cri1alpha.ExecSyncRequest); ok && len(r.GetCmd()) > 0 {
			r.Cmd[0] = "say" // which ends
		}
		n.AddImage("redis:7", imagespec.ImageConfig{Cmd: []string{"serve"}}, nil) // a request may have removed it
		pod := n.pod(t, "p")
		n.running(t, pod, "run")
		n.container(t, pod, "made")
		before := n.Left()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := n.conn.Invoke(ctx, "/"+string(m.Parent().FullName())+"/"+string(m.Name()), req, answer)
		switch code := status.Code(err); {
		case code == codes.Unknown, code == codes.Internal, code == codes.DataLoss, code == codes.DeadlineExceeded, code == codes.Unimplemented:
			t.Errorf("%s: %v\n%s", m.FullName(), err, prototext.Format(req))
		case err != nil && (m.Name() == "RunPodSandbox" || m.Name() == "CreateContainer"):
			if left := n.Left(); !slices.Equal(before, left) {
				t.Errorf("%s failed (%v) and left\n%v of\n%v", m.Name(), err, left, before)
			}
		}
		list, err := n.ListPodSandbox(t.Context(), &cri1alpha.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.GetItems() {
			if _, err := n.RemovePodSandbox(t.Context(), &cri1alpha.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
				t.Errorf("remove %q: %v", p.GetId(), err)
			}
		}
		if err := n.TrySettle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := n.Left(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// fill sets a request's fields to the values of existing objects.
func fill(m protoreflect.Message) {
	pod := "name=p,uid=uid,namespace=ns,attempt=3"
	words := map[protoreflect.Name]string{
		"pod_sandbox_id": pod, "container_id": pod + "|name=run,attempt=4", "image": "redis:7", "name": "n", "pod_cidr": "10.9.0.0/16", "log_directory": "/logs", "cmd": "x", "argdata": "{a: !container_log }",
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.StringKind && words[f.Name()] != "":
			m.Mutable(f).List().Append(protoreflect.ValueOfString(words[f.Name()]))
		case f.IsList():
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(words[f.Name()]))
		}
	}
}
