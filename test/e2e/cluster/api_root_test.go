package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/remotecommand"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/longshore/longshore/internal/roottest"
)

// query names one object of the API.
type query[T runtime.Object] struct {
	client             func(*kubernetes.Clientset) rest.Interface
	resource, ns, name string
	empty              T
}

func core(c *kubernetes.Clientset) rest.Interface   { return c.CoreV1().RESTClient() }
func apps(c *kubernetes.Clientset) rest.Interface   { return c.AppsV1().RESTClient() }
func batch(c *kubernetes.Clientset) rest.Interface  { return c.BatchV1().RESTClient() }
func policy(c *kubernetes.Clientset) rest.Interface { return c.PolicyV1().RESTClient() }

func nodes(name string) query[*corev1.Node] {
	return query[*corev1.Node]{core, "nodes", "", name, &corev1.Node{}}
}

func pods(ns, name string) query[*corev1.Pod] {
	return query[*corev1.Pod]{core, "pods", ns, name, &corev1.Pod{}}
}

func accounts(ns, name string) query[*corev1.ServiceAccount] {
	return query[*corev1.ServiceAccount]{core, "serviceaccounts", ns, name, &corev1.ServiceAccount{}}
}

func namespaces(name string) query[*corev1.Namespace] {
	return query[*corev1.Namespace]{core, "namespaces", "", name, &corev1.Namespace{}}
}

func claims(ns, name string) query[*corev1.PersistentVolumeClaim] {
	return query[*corev1.PersistentVolumeClaim]{core, "persistentvolumeclaims", ns, name, &corev1.PersistentVolumeClaim{}}
}

func deployments(ns, name string) query[*appsv1.Deployment] {
	return query[*appsv1.Deployment]{apps, "deployments", ns, name, &appsv1.Deployment{}}
}

func statefulSets(ns, name string) query[*appsv1.StatefulSet] {
	return query[*appsv1.StatefulSet]{apps, "statefulsets", ns, name, &appsv1.StatefulSet{}}
}

func daemonSets(ns, name string) query[*appsv1.DaemonSet] {
	return query[*appsv1.DaemonSet]{apps, "daemonsets", ns, name, &appsv1.DaemonSet{}}
}

func jobs(ns, name string) query[*batchv1.Job] {
	return query[*batchv1.Job]{batch, "jobs", ns, name, &batchv1.Job{}}
}

func cronJobs(ns, name string) query[*batchv1.CronJob] {
	return query[*batchv1.CronJob]{batch, "cronjobs", ns, name, &batchv1.CronJob{}}
}

func budgets(ns, name string) query[*policyv1.PodDisruptionBudget] {
	return query[*policyv1.PodDisruptionBudget]{policy, "poddisruptionbudgets", ns, name, &policyv1.PodDisruptionBudget{}}
}

// waitFor follows an object until it is as ok says.
func waitFor[T runtime.Object](t *testing.T, c *cluster, q query[T], what string, ok func(T) bool) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	var last T
	lw := cache.NewListWatchFromClient(q.client(c.api), q.resource, q.ns, fields.OneTermEqualSelector("metadata.name", q.name))
	_, err := watchtools.UntilWithSync(ctx, lw, q.empty, nil, func(e watch.Event) (bool, error) {
		o, is := e.Object.(T)
		if !is || e.Type == watch.Deleted {
			return false, nil
		}
		last = o
		return ok(o), nil
	})
	if err != nil {
		b, _ := json.MarshalIndent(last, "", " ")
		t.Fatalf("never: %s %s/%s %s: %v\nat last: %s\n%s", q.resource, q.ns, q.name, what, err, status(b), c.events(q.ns, q.name))
	}
	return last
}

// status is an object's status, in JSON.
func status(object []byte) string {
	var o struct {
		Status json.RawMessage `json:"status"`
	}
	_ = json.Unmarshal(object, &o)
	return string(o.Status)
}

// gone waits until an object is not there.
func gone[T runtime.Object](t *testing.T, c *cluster, q query[T]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	lw := cache.NewListWatchFromClient(q.client(c.api), q.resource, q.ns, fields.OneTermEqualSelector("metadata.name", q.name))
	_, err := watchtools.UntilWithSync(ctx, lw, q.empty,
		func(s cache.Store) (bool, error) { return len(s.List()) == 0, nil },
		func(e watch.Event) (bool, error) { return e.Type == watch.Deleted, nil })
	if err != nil {
		t.Fatalf("never gone: %s %s/%s: %v\n%s", q.resource, q.ns, q.name, err, c.events(q.ns, q.name))
	}
}

// events returns the events of objects with this prefix of their names, a line each.
func (c *cluster) events(ns, name string) string {
	list, err := c.api.CoreV1().Events(ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range list.Items {
		if strings.HasPrefix(e.InvolvedObject.Name, name) {
			fmt.Fprintf(&out, "%s %s %s x%d: %s\n", e.Type, e.InvolvedObject.Name, e.Reason, max(e.Count, 1), e.Message)
		}
	}
	return out.String()
}

// create makes an object of any kind that the client knows.
func (c *cluster) create(t *testing.T, ns string, o runtime.Object) {
	t.Helper()
	if err := c.tryCreate(t.Context(), ns, o); err != nil {
		t.Fatalf("create %T: %v", o, err)
	}
}

func (c *cluster) tryCreate(ctx context.Context, ns string, o runtime.Object) error {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return err
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kinds[0])
	made, err := client.Resource(gvr).Namespace(ns).Create(ctx, &unstructured.Unstructured{Object: m}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, o)
}

// patch changes an object by a merge patch, subresource "" being itself.
func patch[T runtime.Object](t *testing.T, c *cluster, q query[T], body string, subresources ...string) {
	t.Helper()
	r := q.client(c.api).Patch(types.StrategicMergePatchType).Resource(q.resource).Name(q.name).SubResource(subresources...).Body([]byte(body))
	if q.ns != "" {
		r = r.Namespace(q.ns)
	}
	if err := r.Do(t.Context()).Error(); err != nil {
		t.Fatalf("patch %s %s/%s with %s: %v", q.resource, q.ns, q.name, body, err)
	}
}

// remove deletes an object, and afterwards the objects that it owns.
func remove[T runtime.Object](t *testing.T, c *cluster, q query[T]) {
	t.Helper()
	propagation := metav1.DeletePropagationBackground
	r := q.client(c.api).Delete().Resource(q.resource).Name(q.name).Body(&metav1.DeleteOptions{PropagationPolicy: &propagation})
	if q.ns != "" {
		r = r.Namespace(q.ns)
	}
	if err := r.Do(t.Context()).Error(); err != nil {
		t.Fatalf("delete %s %s/%s: %v", q.resource, q.ns, q.name, err)
	}
}

// space is the cluster as a check has it: with a namespace of its own.
type space struct {
	*cluster
	ns string
}

// namespace makes a namespace that goes with the check.
func (c *cluster) namespace(t *testing.T) *space {
	t.Helper()
	ns, err := c.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "check-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.api.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, c, accounts(ns.Name, "default"), "is there", func(*corev1.ServiceAccount) bool { return true })
	return &space{c, ns.Name}
}

// execURL is where the API server takes an exec or an attach.
func (s *space) execURL(verb, pod, container string, o remotecommand.StreamOptions, command ...string) *url.URL {
	q := url.Values{"container": {container}, "command": command}
	for key, on := range map[string]bool{"stdin": o.Stdin != nil, "stdout": o.Stdout != nil, "stderr": o.Stderr != nil, "tty": o.Tty} {
		if on {
			q.Set(key, "true")
		}
	}
	u, err := url.Parse(fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/%s", s.admin.Host, s.ns, pod, verb))
	if err != nil {
		panic(err)
	}
	u.RawQuery = q.Encode()
	return u
}

// executors are how a client may stream.
func (c *cluster) executors() map[string]func(u *url.URL) (remotecommand.Executor, error) {
	return map[string]func(u *url.URL) (remotecommand.Executor, error){
		"spdy": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(c.admin, http.MethodPost, u)
		},
		"websocket": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(c.admin, http.MethodGet, u.String())
		},
	}
}

// try runs a program in a container and returns its output.
func (s *space) try(ctx context.Context, pod, container string, command ...string) (string, error) {
	var out, errs bytes.Buffer
	o := remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}
	e, err := s.executors()["websocket"](s.execURL("exec", pod, container, o, command...))
	if err != nil {
		return "", err
	}
	if err := e.StreamWithContext(ctx, o); err != nil {
		return out.String(), fmt.Errorf("%v in %s/%s: %w: %s", command, pod, container, err, errs.String())
	}
	return out.String(), nil
}

// sh runs a script in a pod's container main, which is to succeed.
func (s *space) sh(t *testing.T, pod, script string) string {
	t.Helper()
	out, err := s.try(t.Context(), pod, "main", "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// output returns a container's output so far.
func (s *space) output(t *testing.T, pod string, o *corev1.PodLogOptions) string {
	t.Helper()
	b, err := s.api.CoreV1().Pods(s.ns).GetLogs(pod, o).DoRaw(t.Context())
	if err != nil {
		t.Fatalf("logs of %s: %v", pod, err)
	}
	return string(b)
}

// said follows a container's output until it has this text, and returns all until then.
func (s *space) said(t *testing.T, pod, container, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	stream, err := s.api.CoreV1().Pods(s.ns).GetLogs(pod, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatalf("logs of %s: %v", pod, err)
	}
	defer stream.Close()
	var got strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(got.String(), text) {
		n, err := stream.Read(buf)
		got.Write(buf[:n])
		if err != nil && !strings.Contains(got.String(), text) {
			t.Fatalf("%s/%s never said %q: %v, but %q", pod, container, text, err, got.String())
		}
	}
	return got.String()
}

// eventually asks four times a second until ok answers true: nothing announces the work of
// kube-proxy and the like, and each question costs a process.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Second / 4)
	defer tick.Stop()
	deadline := time.NewTimer(roottest.Patience())
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// hostDir is a directory that all hosts see.
func (s *space) hostDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(s.dir, "host", s.ns)
	mkdir(t, dir)
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// namespacesGone waits until the checks' namespaces are gone.
func (c *cluster) namespacesGone(t *testing.T) {
	t.Helper()
	list, err := c.api.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range list.Items {
		if ns.DeletionTimestamp != nil {
			gone(t, c, namespaces(ns.Name))
		}
	}
}
