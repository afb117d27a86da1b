package access

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// reads reports whether a call only reads, and whether this table has the call. The read socket serves only
// such calls. Dump, and Inspect with environment values, are not among them.
func reads(method string) (readOnly, known bool) {
	switch method {
	case longshorev1.Containers_ListSandboxes_FullMethodName,
		longshorev1.Containers_ListContainers_FullMethodName,
		longshorev1.Containers_Inspect_FullMethodName,
		longshorev1.Containers_Why_FullMethodName,
		longshorev1.Containers_Wait_FullMethodName,
		longshorev1.Containers_Logs_FullMethodName,
		longshorev1.Containers_Stats_FullMethodName,
		longshorev1.Containers_Top_FullMethodName,
		longshorev1.Containers_Diff_FullMethodName,
		longshorev1.Images_ListImages_FullMethodName,
		longshorev1.Images_InspectImage_FullMethodName,
		longshorev1.Images_ImageUsage_FullMethodName,
		longshorev1.Images_WatchPulls_FullMethodName,
		longshorev1.Volumes_ListVolumes_FullMethodName,
		longshorev1.Networks_ListNetworks_FullMethodName,
		longshorev1.Networks_EgressLog_FullMethodName,
		longshorev1.Node_Version_FullMethodName,
		longshorev1.Node_Info_FullMethodName,
		longshorev1.Node_DiskUsage_FullMethodName,
		longshorev1.Node_Load_FullMethodName,
		longshorev1.Node_DiskParts_FullMethodName,
		longshorev1.Node_Doctor_FullMethodName,
		longshorev1.Node_Check_FullMethodName,
		longshorev1.Node_Config_FullMethodName,
		longshorev1.Node_Events_FullMethodName,
		longshorev1.Swarm_Status_FullMethodName:
		return true, true
	case longshorev1.Containers_Create_FullMethodName,
		longshorev1.Containers_Start_FullMethodName,
		longshorev1.Containers_Restart_FullMethodName,
		longshorev1.Containers_Stop_FullMethodName,
		longshorev1.Containers_Kill_FullMethodName,
		longshorev1.Containers_Rename_FullMethodName,
		longshorev1.Containers_Update_FullMethodName,
		longshorev1.Containers_Pause_FullMethodName,
		longshorev1.Containers_Resume_FullMethodName,
		longshorev1.Containers_Sleep_FullMethodName,
		longshorev1.Containers_Wake_FullMethodName,
		longshorev1.Containers_Checkpoint_FullMethodName,
		longshorev1.Containers_ExportCheckpoint_FullMethodName,
		longshorev1.Containers_Restore_FullMethodName,
		longshorev1.Containers_Remove_FullMethodName,
		longshorev1.Containers_Exec_FullMethodName,
		longshorev1.Containers_Attach_FullMethodName,
		longshorev1.Containers_CopyOut_FullMethodName,
		longshorev1.Containers_Commit_FullMethodName,
		longshorev1.Containers_CopyIn_FullMethodName,
		longshorev1.Images_PullImage_FullMethodName,
		longshorev1.Images_ImportImages_FullMethodName,
		longshorev1.Images_ExportImages_FullMethodName,
		longshorev1.Images_PushImage_FullMethodName,
		longshorev1.Images_Login_FullMethodName,
		longshorev1.Images_TagImage_FullMethodName,
		longshorev1.Images_RemoveImage_FullMethodName,
		longshorev1.Images_PruneImages_FullMethodName,
		longshorev1.Volumes_CreateVolume_FullMethodName,
		longshorev1.Volumes_RemoveVolume_FullMethodName,
		longshorev1.Volumes_PruneVolumes_FullMethodName,
		longshorev1.Networks_CreateNetwork_FullMethodName,
		longshorev1.Networks_RemoveNetwork_FullMethodName,
		longshorev1.Networks_PruneNetworks_FullMethodName,
		longshorev1.Networks_ConnectNetwork_FullMethodName,
		longshorev1.Networks_DisconnectNetwork_FullMethodName,
		longshorev1.Networks_SetEgress_FullMethodName,
		longshorev1.Node_Dump_FullMethodName,
		longshorev1.Node_Upgrade_FullMethodName,
		longshorev1.Node_Audit_FullMethodName,
		longshorev1.Swarm_Join_FullMethodName,
		longshorev1.Swarm_Leave_FullMethodName:
		return false, true
	}
	return false, false
}

// Changes reports whether a call, without the name of its service, changes something, or reads files of a container.
func Changes(op string) bool {
	for _, service := range []string{"Containers", "Images", "Volumes", "Networks", "Node", "Swarm"} {
		if readOnly, known := reads("/longshore.v1." + service + "/" + op); known {
			return !readOnly
		}
	}
	return true
}

// Reads reports whether a call only reads.
func Reads(method string) bool {
	ok, _ := reads(method)
	return ok
}

// lists reports whether a call only lists and inspects, and shows no output of a container's programs.
func lists(method string) bool {
	switch method {
	case longshorev1.Containers_ListSandboxes_FullMethodName,
		longshorev1.Containers_ListContainers_FullMethodName,
		longshorev1.Containers_Inspect_FullMethodName,
		longshorev1.Node_Version_FullMethodName:
		return true
	}
	return false
}

type readOnlyKey struct{}

// ReadOnly reports whether a call may only read: secrets are hidden in its answer.
func ReadOnly(ctx context.Context) bool { return ctx.Value(readOnlyKey{}) != nil }

// Gate refuses some calls of a socket.
type Gate struct {
	ReadOnly   bool        // refuses calls that change something
	Restricted func() bool // while it returns true, only calls that list and inspect are served; nil never does
}

func (g Gate) isRestricted() bool { return g.Restricted != nil && g.Restricted() }

func (g Gate) check(method string) error {
	if ok, _ := reads(method); g.ReadOnly && !ok {
		return status.Error(codes.PermissionDenied, "this socket serves only calls that read")
	}
	if g.isRestricted() && !lists(method) {
		return status.Error(codes.PermissionDenied, "only calls that list and inspect are allowed while a policy is in force")
	}
	return nil
}

func (g Gate) mark(ctx context.Context) context.Context {
	if g.ReadOnly || g.isRestricted() {
		return context.WithValue(ctx, readOnlyKey{}, true)
	}
	return ctx
}

// Unary is a gRPC interceptor.
func (g Gate) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := g.check(info.FullMethod); err != nil {
		return nil, err
	}
	return next(g.mark(ctx), req)
}

// Stream is a gRPC interceptor.
func (g Gate) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := g.check(info.FullMethod); err != nil {
		return err
	}
	return next(srv, gatedStream{ss, g.mark(ss.Context())})
}

type gatedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s gatedStream) Context() context.Context { return s.ctx }
