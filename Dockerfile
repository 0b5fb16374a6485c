# A manager or an agent of Shoal. The manager needs no torch: build it with --build-arg EXTRA="".
FROM python:3.11-slim

ARG EXTRA="[torch]"
ARG TORCH_INDEX="https://download.pytorch.org/whl/cpu"

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN if [ -n "$EXTRA" ]; then pip install --no-cache-dir torch --index-url "$TORCH_INDEX"; fi \
    && pip install --no-cache-dir "/src$EXTRA" \
    && rm -rf /src \
    && useradd --system --user-group --create-home --home-dir /var/lib/shoal shoal

ENV SHOAL_HOME=/var/lib/shoal
VOLUME /var/lib/shoal
USER shoal
EXPOSE 7070 7071
ENTRYPOINT ["shoal"]
CMD ["up"]
