package composefile

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// Options say which project is read. The variables of the environment are those of the process that reads.
type Options struct {
	Files    []string // "-" is standard input; none: those that COMPOSE_FILE names, or compose.yaml here or in a parent
	Name     string   // "": COMPOSE_PROJECT_NAME, the name in the file, or that of the directory
	Dir      string   // "": that of the first file
	EnvFiles []string // none: .env in the project's directory
	Profiles []string // none: COMPOSE_PROFILES
	// Services selects services and, unless NoDeps is set, those that they depend on. None selects all.
	Services []string
	NoDeps   bool
	Scale    map[string]int // numbers of containers, in place of those of the files
}

// Project has the objects that Compose files declare.
type Project struct {
	Name, Dir string
	Files     []string // absolute paths
	Services  []Service
	Networks  []Network
	Volumes   []Volume
	// Declared are the names of all services, also of those that no profile enables or that are not selected.
	Declared []string
	// Notes are lines for the user about settings without effect.
	Notes []string
}

// Service is one service of a project.
type Service struct {
	Name string
	// Request creates a container of the service. It has no name yet, and only the labels of the service.
	Request       *longshorev1.CreateRequest
	ContainerName string // "": made of the project, the service and a number
	Scale         int
	DependsOn     []Dependency
	Files         []File
	MakeDirs      []string      // directories of the host that are made if they are missing
	PullAfter     time.Duration // pull the image again if it was pulled longer ago; 0: never
	Quiet         bool          // does not show its output
	Hash          string        // of all settings that need a new container when they change
	At            string        // FILE:LINE of the service
}

// The conditions of dependencies.
const (
	Started   = "service_started"
	Healthy   = "service_healthy"
	Completed = "service_completed_successfully"
)

// Dependency is a service that another one needs.
type Dependency struct {
	Service   string
	Condition string
	Required  bool
	Restart   bool // restart the dependent service after a change of this one
}

// File is a file that is copied into a container before its start.
type File struct {
	Path     string
	Content  []byte
	Mode     int64
	UID, GID int
}

// Network is a network of a project.
type Network struct {
	Key      string // its name in the files
	External bool   // must exist
	Request  *longshorev1.CreateNetworkRequest
	At       string
}

// Volume is a named volume of a project.
type Volume struct {
	Key      string
	External bool
	Request  *longshorev1.CreateVolumeRequest
	At       string
}

// Outline has the names of a project and its services. It exists even if the files have impossible settings.
type Outline struct {
	Name     string
	Services []string // also of profiles that are not enabled; nil without files
	// DependsOn has the services that each service needs.
	DependsOn map[string][]string
}

// The labels of objects. Other tools recognise a project by them.
const (
	LabelProject   = "com.docker.compose.project"
	LabelService   = "com.docker.compose.service"
	LabelNumber    = "com.docker.compose.container-number"
	LabelHash      = "com.docker.compose.config-hash"
	LabelOneOff    = "com.docker.compose.oneoff"
	LabelDependsOn = "com.docker.compose.depends_on"
	LabelDir       = "com.docker.compose.project.working_dir"
	LabelFiles     = "com.docker.compose.project.config_files"
	LabelImage     = "com.docker.compose.image"
	LabelNetwork   = "com.docker.compose.network"
	LabelVolume    = "com.docker.compose.volume"
)

// ContainerName returns the name of a service's container with a number.
func ContainerName(project, service string, number int) string {
	return fmt.Sprintf("%s-%s-%d", project, service, number)
}

// request is a message in a JSON document.
type request[M proto.Message] struct{ m M }

func (r request[M]) MarshalJSON() ([]byte, error) { return protojson.Marshal(r.m) }

func (r request[M]) UnmarshalJSON(data []byte) error { return protojson.Unmarshal(data, r.m) }

// MarshalJSON encodes a service with its message.
func (s Service) MarshalJSON() ([]byte, error) {
	type plain Service
	return json.Marshal(struct {
		plain
		Request request[*longshorev1.CreateRequest]
	}{plain(s), request[*longshorev1.CreateRequest]{s.Request}})
}

// UnmarshalJSON decodes a service with its message.
func (s *Service) UnmarshalJSON(data []byte) error {
	type plain Service
	out := struct {
		plain
		Request request[*longshorev1.CreateRequest]
	}{Request: request[*longshorev1.CreateRequest]{&longshorev1.CreateRequest{}}}
	err := json.Unmarshal(data, &out)
	*s, s.Request = Service(out.plain), out.Request.m
	return err
}

// MarshalJSON encodes a network with its message.
func (n Network) MarshalJSON() ([]byte, error) {
	type plain Network
	return json.Marshal(struct {
		plain
		Request request[*longshorev1.CreateNetworkRequest]
	}{plain(n), request[*longshorev1.CreateNetworkRequest]{n.Request}})
}

// UnmarshalJSON decodes a network with its message.
func (n *Network) UnmarshalJSON(data []byte) error {
	type plain Network
	out := struct {
		plain
		Request request[*longshorev1.CreateNetworkRequest]
	}{Request: request[*longshorev1.CreateNetworkRequest]{&longshorev1.CreateNetworkRequest{}}}
	err := json.Unmarshal(data, &out)
	*n, n.Request = Network(out.plain), out.Request.m
	return err
}

// MarshalJSON encodes a volume with its message.
func (v Volume) MarshalJSON() ([]byte, error) {
	type plain Volume
	return json.Marshal(struct {
		plain
		Request request[*longshorev1.CreateVolumeRequest]
	}{plain(v), request[*longshorev1.CreateVolumeRequest]{v.Request}})
}

// UnmarshalJSON decodes a volume with its message.
func (v *Volume) UnmarshalJSON(data []byte) error {
	type plain Volume
	out := struct {
		plain
		Request request[*longshorev1.CreateVolumeRequest]
	}{Request: request[*longshorev1.CreateVolumeRequest]{&longshorev1.CreateVolumeRequest{}}}
	err := json.Unmarshal(data, &out)
	*v, v.Request = Volume(out.plain), out.Request.m
	return err
}
