// crictl for the tests in test/cri, apart from the other tools because its
// dependencies do not go with theirs: go build -modfile=tools/crictl/go.mod
// sigs.k8s.io/cri-tools/cmd/crictl
module github.com/longshore/longshore/tools/crictl

go 1.26.8

require sigs.k8s.io/cri-tools v1.37.0
