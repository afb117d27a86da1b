package dockertypes

// ImageSummary is an image in a list. A size of -1 is unknown, and -1 Containers were not counted.
type ImageSummary struct {
	Containers  int64
	Created     int64
	ID          string `json:"Id"`
	Labels      map[string]string
	ParentID    string `json:"ParentId"`
	RepoDigests []string
	RepoTags    []string
	SharedSize  int64
	Size        int64
	VirtualSize int64 `json:",omitempty"`
}

// ImageHistory is an entry of an image's history.
type ImageHistory struct {
	Comment   string
	Created   int64
	CreatedBy string
	ID        string `json:"Id"`
	Size      int64
	Tags      []string
}

// ImageDeletion is a deleted image or layer, or a removed name. It has one of the two.
type ImageDeletion struct {
	Deleted  string `json:",omitempty"`
	Untagged string `json:",omitempty"`
}

// ImagesPruned is the answer to a prune of images.
type ImagesPruned struct {
	ImagesDeleted  []ImageDeletion
	SpaceReclaimed uint64
}

// BuildCachePruned is the answer to a prune of the builder's cache.
type BuildCachePruned struct {
	CachesDeleted  []string
	SpaceReclaimed uint64
}

// AuthAnswer is the answer to credentials that a registry accepts.
type AuthAnswer struct {
	IdentityToken string
	Status        string
}

// RemoteImage is an image as a registry describes it.
type RemoteImage struct {
	Descriptor Descriptor
	Platforms  []Platform
}

// Progress is a message of a pull, push, load or import. The command line draws the messages with the same ID on one line.
type Progress struct {
	Stream   string          `json:"stream,omitempty"`
	Status   string          `json:"status,omitempty"`
	Progress *ProgressDetail `json:"progressDetail,omitempty"`
	ID       string          `json:"id,omitempty"`
	Aux      any             `json:"aux,omitempty"`
}

// ProgressDetail is the number of bytes that are done, and of all.
type ProgressDetail struct {
	Current int64 `json:"current,omitempty"`
	Total   int64 `json:"total,omitempty"`
}

// Pushed is the Aux of a push's last message.
type Pushed struct {
	Tag    string
	Digest string
	Size   int64
}
