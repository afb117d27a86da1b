package access

import (
	"testing"

	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func TestEveryCallIsClassified(t *testing.T) {
	for _, d := range []grpc.ServiceDesc{
		longshorev1.Containers_ServiceDesc, longshorev1.Images_ServiceDesc, longshorev1.Volumes_ServiceDesc,
		longshorev1.Networks_ServiceDesc, longshorev1.Node_ServiceDesc, longshorev1.Swarm_ServiceDesc,
	} {
		var names []string
		for _, m := range d.Methods {
			names = append(names, m.MethodName)
		}
		for _, m := range d.Streams {
			names = append(names, m.StreamName)
		}
		for _, n := range names {
			if _, known := reads("/" + d.ServiceName + "/" + n); !known {
				t.Errorf("%s/%s: does it read only?", d.ServiceName, n)
			}
		}
	}
}
