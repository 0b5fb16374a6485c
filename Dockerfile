# A manager or an agent of Shoal. The manager needs no torch: build it with --build-arg EXTRA="".
# The tag names Python's patch and Debian's release. A digest fixes every byte: `docker buildx imagetools inspect
# python:3.11.15-slim-bookworm` prints that of the list for all machines; write it behind the tag, as @sha256:...
FROM python:3.11.15-slim-bookworm

ARG EXTRA="[torch]"
ARG TORCH="2.13.0"
ARG TORCH_INDEX="https://download.pytorch.org/whl/cpu"

COPY requirements/image.lock pyproject.toml hatch_build.py README.md LICENSE /src/
COPY src /src/src
# Everything by its hash; torch by its version, since its file differs between machines and indexes. The lock has all that
# torch asks for, and what builds Shoal, so that nothing else is looked for.
RUN pip install --no-cache-dir --no-deps --require-hashes -r /src/image.lock \
    && if [ -n "$EXTRA" ]; then pip install --no-cache-dir --no-deps "torch==$TORCH" --index-url "$TORCH_INDEX"; fi \
    && pip install --no-cache-dir --no-deps --no-build-isolation /src \
    && rm -rf /src \
    && useradd --system --user-group --create-home --home-dir /var/lib/shoal shoal

ENV SHOAL_HOME=/var/lib/shoal
VOLUME /var/lib/shoal
USER shoal
EXPOSE 7070 7071
# Of a manager: whether it would serve a device that dials. An agent serves nobody; compose.yaml turns this off for it.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-m", "shoal.identity.ask_health"]
ENTRYPOINT ["shoal"]
CMD ["up"]
