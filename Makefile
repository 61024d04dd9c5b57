# Two commands do everything on a fresh machine: `make up` and `make test`. The rest is for people who
# work on Warp. Recipes are plain commands; logic lives in .ci/ and testbed/.

IMAGE ?= warp:latest
KUBECTL ?= kubectl
# Built quickly rather than for speed; `make build` and the image are optimised.
UP := cargo build --profile up --locked -p warp
WARP := cargo run --profile up --locked --quiet -p warp --

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: up
up: ## Build Warp and start it on this machine with a simulated fleet (Ctrl-C stops it)
	$(UP)
	$(WARP) up --demo

.PHONY: build
build: ## Build Warp, optimised
	cargo build --release --locked -p warp

.PHONY: run
run: ## Run the operator against the current kubeconfig
	$(WARP) operator

.PHONY: test
test: control-plane ## Run every test (builds the real control plane once into the user's cache)
	.ci/test

.PHONY: test-docker
test-docker: ## The Docker node against the engine of this machine (needs a running Docker or Podman)
	testbed/docker

.PHONY: test-vllm
test-vllm: ## A real vLLM under Warp on this machine's processors (installs it once: 7 GB into the user's cache)
	testbed/vllm/run

.PHONY: test-image
test-image: ## Build the Dockerfile and run what comes out (root on Debian; installs buildah and debootstrap where they are missing)
	testbed/image

.PHONY: test-mpi
test-mpi: ## A gang that starts by mpirun over SSH on this machine (installs Debian's Open MPI and OpenSSH where they are missing)
	testbed/mpi/run

.PHONY: test-torch
test-torch: ## A real torch.distributed in a gang on this machine's processors (installs PyTorch once: 5 GB into the user's cache)
	testbed/torch/run

.PHONY: test-cloud
test-cloud: ## Rent one machine for real and give it back: PROVIDER=lambda CAP=1.50, credentials in WARP_CLOUD_<key>
	cargo run --locked --quiet -p warp-cloud --example rent -- "$(PROVIDER)" "$(CAP)"

.PHONY: test-moto
test-moto: ## EC2 requests judged by moto (installs it once into the user's cache)
	testbed/moto/run

.PHONY: test-gcp
test-gcp: ## Compute Engine requests judged by Google's own description, from its Go module
	testbed/gcp

.PHONY: test-alerts
test-alerts: ## When each alert fires and when not, judged by promtool (builds it once from its Go module, about five minutes)
	testbed/promtool/run

.PHONY: user-data
user-data: ## What rented machines run at their first start, judged by cloud-init and shellcheck (installs them where they are missing)
	testbed/user-data

.PHONY: lint
lint: ## Formatting, clippy, documentation
	.ci/lint

.PHONY: control-plane
control-plane: ## Build etcd, kube-apiserver & co. for the tests, once (needs Go)
	testbed/control-plane

.PHONY: conformance
conformance: ## Kubernetes' own end-to-end tests against the embedded engine
	bench/conformance/run

.PHONY: faults
faults: ## A crash and a lie at every write of every controller; prints the figures
	bench/faults/run

.PHONY: faults-mutants
faults-mutants: ## Seeded defects the fault suite must catch; prints which it does
	bench/faults/mutants/run

.PHONY: bench
bench: ## Benchmarks; each prints the figures recorded under bench/
	bench/run

.PHONY: soak
soak: ## What takes too long for `make test`: 200 kills of the API server and the like
	bench/soak/run

.PHONY: manifests
manifests: ## Regenerate CRDs and reference pages from the types
	UPDATE=1 cargo test --locked -p warp-api --test it golden

.PHONY: deploy
deploy: ## Install Warp on the cluster of the current kubeconfig
	$(WARP) install --print --image $(IMAGE) | $(KUBECTL) apply -f -

.PHONY: undeploy
undeploy: ## Remove Warp from the cluster, its workloads and their Jobs included
	$(KUBECTL) delete gpuworkloads,inferenceservices,modelcaches,gpurequests,cloudproviders,tenants --all --all-namespaces --ignore-not-found
	$(WARP) install --print --image $(IMAGE) | $(KUBECTL) delete --ignore-not-found -f -

.PHONY: docker-build
docker-build: ## Build the image $(IMAGE)
	docker build -t $(IMAGE) .

.PHONY: docker-push
docker-push: ## Push the image $(IMAGE)
	docker push $(IMAGE)
